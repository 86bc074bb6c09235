"""What `pydflash2 generate` takes for the prompt, and what it says of an answer that was cut."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pydflash2 import Chunk
from pydflash2._generation import FinishReason
from pydflash2.cli import _arguments, _generate, _terminal


def prompt_of(path: Path, *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    _generate.add_arguments(parser)
    return _generate._prompt(parser.parse_args(["--file", str(path), *arguments]))


@pytest.mark.parametrize(
    ("data", "prompt"),
    [
        (b"Once upon a time\n", "Once upon a time"),
        (b"Once upon a time\r\n", "Once upon a time"),
        (b"\xef\xbb\xbfOnce upon a time", "Once upon a time"),
        (b"\xef\xbb\xbf\n", ""),
        (b"a list:\n\n", "a list:\n"),
        (b"\nOnce", "\nOnce"),
        (b"Once ", "Once "),
        (b"Once\r", "Once\r"),
    ],
)
def test_marks_of_a_file_are_no_prompt(tmp_path: Path, data: bytes, prompt: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(data)
    assert prompt_of(path) == prompt
    assert prompt_of(path, "--raw") == data.decode("utf-8")


def seed_of(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    _arguments.add_sampling(parser)
    return _arguments.generate_options(parser.parse_args(arguments))["seed"]


def test_seeds_are_new_unless_given() -> None:
    assert seed_of("--seed", "7") == 7
    assert seed_of("--seed", "0") == 0
    chosen = {seed_of() for _ in range(4)} | {seed_of("--seed", "-1") for _ in range(4)}
    assert len(chosen) > 1
    assert all(0 <= seed < 2**32 - 1 for seed in chosen)


@pytest.mark.parametrize(
    ("reason", "says"),
    [("length", "cut at 2 tokens"), ("context", "the context is full"), ("end", ""), ("stop", "")],
)
def test_the_figures_say_why_an_answer_was_cut(reason: FinishReason, says: str) -> None:
    meter = _terminal.Meter()
    last = Chunk((), (1,), n_drafted=0, n_accepted=0, finish_reason=reason)
    for _ in meter.watch([Chunk((), (1,), n_drafted=0, n_accepted=0, finish_reason=None), last]):
        pass
    line = _terminal.summary(meter)
    assert line.endswith(says or "acceptance length 1.00")
    assert ("cut" in line) == bool(says)


class Clock:
    """Stands in for the time module: a second passes for each chunk, and none meanwhile."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now_s = 0.0
        self.is_chunk = False

    def perf_counter(self) -> float:
        self.now_s += self.step_s if self.is_chunk else 0.0
        self.is_chunk = not self.is_chunk
        return self.now_s


def timed_meter(monkeypatch: pytest.MonkeyPatch, step_s: float) -> _terminal.Meter:
    """Of eleven tokens, one by one, of which ten were timed."""
    monkeypatch.setattr(_terminal, "time", Clock(step_s))
    meter = _terminal.Meter()
    chunk = Chunk((), (1,), n_drafted=0, n_accepted=0, finish_reason=None)
    for _ in meter.watch([chunk] * 11):
        pass
    return meter


def test_the_figures_compare_with_plain_decoding_and_with_stock_llama_cpp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, plain, stock = (timed_meter(monkeypatch, step) for step in (0.1, 0.15, 0.25))
    assert _terminal.summary(ours, plain, stock) == (
        "10 tok/s, acceptance length 1.00, 1.50x plain decoding, 2.50x stock llama.cpp (measured), "
        "same text"
    )
    stock.tokens.append(2)  # another rounding: no matter of drafting
    assert _terminal.summary(ours, plain, stock).endswith("same text")
    plain.tokens[3] = 2
    assert "text differs from token 4 on" in _terminal.summary(ours, plain, stock)


def test_the_figures_of_a_single_token_claim_nothing() -> None:
    meter = _terminal.Meter()
    only = Chunk((), (1,), n_drafted=0, n_accepted=0, finish_reason="length")
    for _ in meter.watch([only]):
        pass
    line = _terminal.summary(meter, meter, meter)
    assert line == "too few tokens to time, same text, cut at 1 tokens"


def test_template_variables_are_json_or_text() -> None:
    parser = argparse.ArgumentParser()
    _arguments.add_template(parser)
    given = ["enable_thinking=false", "date=1 May = x", "n=3", "n=4", "tools=[{}]", "none="]
    args = parser.parse_args([f"--template-var={text}" for text in given])
    assert _arguments.template_variables(args) == {
        "enable_thinking": False,
        "date": "1 May = x",
        "n": 4,
        "tools": [{}],
        "none": "",
    }
    for wrong in ("enable_thinking", "=1", "a-b=1"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--template-var", wrong])
