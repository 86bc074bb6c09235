"""Text out of token pieces: split characters and stop strings, however they fall on the tokens."""

from __future__ import annotations

import itertools

import pytest

from pydflash2._text import TextStream


def feed(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[str, int, bool]:
    """Text, number of tokens in it, and whether it was stopped."""
    stream = TextStream(stop)
    text = ""
    for piece in pieces:
        text += stream.push(piece)
        if stream.is_stopped:
            break
    text += stream.finish()
    return text, stream.n_certain_tokens, stream.is_stopped


def splits(data: bytes) -> list[list[bytes]]:
    """Every way to cut data into pieces."""
    n = len(data) - 1
    return [
        [data[a:b] for a, b in itertools.pairwise([0, *(i + 1 for i in range(n) if c[i]), n + 1])]
        for c in itertools.product([False, True], repeat=n)
    ]


def test_a_character_appears_when_it_is_complete() -> None:
    stream = TextStream()
    assert [stream.push(bytes([b])) for b in "aé€".encode()] == ["a", "", "é", "", "", "€"]
    assert stream.finish() == ""


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    stream = TextStream()
    assert stream.push(b"a\xe2\x82") == "a"
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_that_are_no_text_are_replaced_at_once() -> None:
    stream = TextStream()
    assert stream.push(b"a\xffb") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    ("data", "stop", "expected"),
    [
        ("one##two", ("##",), "one"),
        ("a#b##c", ("##",), "a#b"),
        ("aab", ("ab",), "a"),
        ("xyzabc", ("abc", "z"), "xy"),
        ("xabcd", ("bc", "abcde"), "xa"),
        ("naïve €!", ("ï",), "na"),
        ("no stop", ("##",), "no stop"),
        ("ends with #", ("##",), "ends with #"),
    ],
)
def test_the_split_does_not_matter(data: str, stop: tuple[str, ...], expected: str) -> None:
    for pieces in splits(data.encode()):
        text, n_tokens, is_stopped = feed(pieces, stop)
        assert text == expected, pieces
        assert is_stopped == (expected != data)
        ends = list(itertools.accumulate(len(piece) for piece in pieces))
        assert n_tokens == sum(end <= len(expected.encode()) for end in ends), pieces


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("<|end|>", "Hi\n"),
        ("Hi\n<|end|>", ""),
        ("\n<|end|>us", "Hi"),
        ("<|end|><|end|>", "Hi\nuser"),
        ("\nuser", "Hi\nuser"),
    ],
)
def test_stop_strings_may_hold_control_tokens(stop: str, expected: str) -> None:
    stream = TextStream([stop])
    text = stream.push(b"Hi\n") + stream.push(b"", b"<|end|>")
    if not stream.is_stopped:
        text += stream.push(b"user")
    assert stream.is_stopped == (stop in "Hi\n<|end|>user")
    assert text + stream.finish() == expected


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(["\n\nUser:"])
    assert stream.push(b"Hi\n") == "Hi"
    assert stream.n_certain_tokens == 0
    assert stream.push(b"there") == "\nthere"
    assert stream.n_certain_tokens == 2


def test_text_comes_out_in_order_and_once() -> None:
    for pieces in splits(b"ab#c##"):
        stream = TextStream(["###"])
        text = "".join(stream.push(piece) for piece in pieces) + stream.finish()
        assert text == "ab#c##"
        assert stream.n_certain_tokens == len(pieces)
