"""pydflash2.Llama on a real model: the text is the target's, and every end is exact."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import pydflash2
from pydflash2 import _ffi, _generation

QUESTION = [{"role": "user", "content": "Explain in simple words how rain is made."}]

CLOSE_LOGITS = 0.25
"""Decoding several tokens at once rounds differently from decoding one. For this 4-bit model that
moves logits by less than this, so only candidates closer than that may change places."""


@pytest.fixture(scope="module")
def prompt(smollm: pydflash2.Llama) -> list[int]:
    return smollm.format_chat(QUESTION)


@pytest.fixture(scope="module")
def reference(smollm: pydflash2.Llama, prompt: list[int]) -> pydflash2.Completion:
    """Up to 80 tokens, greedy."""
    return smollm.generate(prompt, max_tokens=80)


def logits_after(llm: pydflash2.Llama, tokens: Sequence[int]) -> np.ndarray:
    """The target's own logits after a sequence, decoded afresh."""
    llm.session.rewind(0)
    llm.session.prefill(tokens)
    row = llama_cpp.llama_get_logits_ith(llm.target.context_address, -1)
    address = ctypes.cast(row, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, (llm.target.vocab.n_tokens,)).copy()


def assert_same_or_close(
    llm: pydflash2.Llama, prompt: Sequence[int], drafted: Sequence[int], plain: Sequence[int]
) -> None:
    """Equal tokens, or a first difference between candidates that rounding may swap."""
    for i, (a, b) in enumerate(zip(drafted, plain, strict=True)):
        if a != b:
            logits = logits_after(llm, [*prompt, *plain[:i]])
            gap = abs(float(logits[a] - logits[b]))
            assert gap < CLOSE_LOGITS, f"token {i}: {a} instead of {b}, {gap} apart"
            return


@pytest.fixture
def plain(smollm: pydflash2.Llama) -> Iterator[pydflash2.Llama]:
    """The same model with drafting off."""
    smollm.set_drafting(False)
    yield smollm
    smollm.set_drafting(True)


def test_the_text_is_the_targets(
    plain: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion
) -> None:
    assert reference.stats.n_accepted > 0
    assert reference.stats.acceptance_length > 1.2
    without = plain.generate(prompt, max_tokens=80)
    assert without.stats.n_drafted == 0
    assert without.stats.acceptance_length == 1.0
    assert_same_or_close(plain, prompt, reference.tokens, without.tokens)


def test_a_stream_is_the_same_text(
    smollm: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion
) -> None:
    chunks = list(smollm.stream(prompt, max_tokens=80))
    assert "".join(chunk.text for chunk in chunks) == reference.text
    assert tuple(t for chunk in chunks for t in chunk.tokens) == reference.tokens
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == reference.finish_reason
    assert len(chunks) < len(reference.tokens)  # several tokens came at once
    assert sum(chunk.n_accepted for chunk in chunks) == smollm.stats().n_accepted
    for chunk in chunks:
        assert sum(piece.is_drafted for piece in chunk.pieces) <= chunk.n_accepted
        assert chunk.n_accepted <= chunk.n_drafted <= 7
    assert any(piece.is_drafted for chunk in chunks for piece in chunk.pieces)


def test_closing_a_stream_leaves_what_was_handed_out(
    smollm: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion
) -> None:
    stream = smollm.stream(prompt, max_tokens=80)
    handed_out: list[int] = []
    for _ in range(4):
        handed_out += next(stream).tokens
    stream.close()  # type: ignore[attr-defined]
    assert smollm.session.tokens == (*prompt, *handed_out)
    assert tuple(handed_out) == reference.tokens[: len(handed_out)]
    rest = smollm.generate([*prompt, *handed_out], max_tokens=80 - len(handed_out))
    assert rest.stats.n_prefill == 0
    assert (*handed_out, *rest.tokens) == reference.tokens


def test_a_second_stream_is_refused_until_the_first_is_closed(
    smollm: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion
) -> None:
    stream = smollm.stream(prompt, max_tokens=80)
    next(stream)
    with pytest.raises(pydflash2.InvalidArgumentError, match="still open"):
        smollm.generate(prompt)
    stream.close()  # type: ignore[attr-defined]
    assert smollm.generate(prompt, max_tokens=80).tokens == reference.tokens


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
def test_max_tokens_is_exact(
    smollm: pydflash2.Llama,
    prompt: list[int],
    reference: pydflash2.Completion,
    max_tokens: int,
) -> None:
    got = smollm.generate(prompt, max_tokens=max_tokens)
    assert got.tokens == reference.tokens[:max_tokens]
    assert got.finish_reason == "length"
    assert smollm.session.n_tokens == len(prompt) + max_tokens


@pytest.mark.parametrize("n_draft", [0, 1, 7])
def test_a_stop_string_may_be_a_control_token(smollm: pydflash2.Llama, n_draft: int) -> None:
    smollm.set_n_draft(n_draft)
    prompt = smollm.format_chat([{"role": "user", "content": "Say hello."}])
    ended = smollm.generate(prompt, max_tokens=200)
    assert ended.finish_reason == "end"
    stopped = smollm.generate(prompt, max_tokens=200, stop="<|im_end|>")
    assert (stopped.finish_reason, stopped.text) == ("stop", ended.text)
    assert stopped.tokens == ended.tokens[:-1]
    across = smollm.generate(prompt, max_tokens=200, stop=ended.text[-3:] + "<|im_end|>")
    assert (across.finish_reason, across.text) == ("stop", ended.text[:-3])
    smollm.set_n_draft(7)


@pytest.mark.parametrize("first", [3, 11, 24, 40])
def test_a_stop_string_that_spans_tokens(
    smollm: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion, first: int
) -> None:
    pieces = [smollm.target.vocab.piece(token) for token in reference.tokens]
    before = b"".join(pieces[:first])
    stop = (pieces[first][-2:] + pieces[first + 1][:2]).decode()
    text = reference.text[: reference.text.index(stop)]
    got = smollm.generate(prompt, max_tokens=80, stop=["never", stop])
    assert got.text == text
    assert got.finish_reason == "stop"
    assert len(text.encode()) <= len(before) + len(pieces[first])
    # Kept are the tokens that lie wholly before the stop string, and the sequence ends there.
    assert text.startswith(smollm.detokenize(got.tokens))
    assert got.tokens == reference.tokens[: len(got.tokens)]
    assert smollm.session.tokens == (*prompt, *got.tokens)
    rest = smollm.generate([*prompt, *got.tokens], max_tokens=80 - len(got.tokens))
    assert (*got.tokens, *rest.tokens) == reference.tokens


def test_the_model_ends_its_answer(smollm: pydflash2.Llama) -> None:
    question = [{"role": "user", "content": "What is the capital of France? One sentence."}]
    got = smollm.chat(question, max_tokens=400)
    assert got.finish_reason == "end"
    assert got.tokens[-1] == smollm.target.vocab.eos
    assert "Paris" in got.text
    assert "<|im_end|>" not in got.text
    assert smollm.session.n_tokens == len(smollm.format_chat(question)) + len(got.tokens)


def test_a_second_turn_decodes_only_what_is_new(smollm: pydflash2.Llama) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? One sentence."}]
    first = smollm.chat(messages, max_tokens=60)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And of Italy?"},
    ]
    whole = smollm.format_chat(messages)
    second = smollm.chat(messages, max_tokens=40)
    assert 0 < second.stats.n_prefill < len(whole) / 2
    assert second.stats.n_accepted > 0
    again = smollm.chat(messages, max_tokens=40)
    assert again.stats.n_prefill == 0
    smollm.session.rewind(0)
    fresh = smollm.chat(messages, max_tokens=40)
    assert fresh.stats.n_prefill == len(whole)
    assert_same_or_close(smollm, whole, second.tokens, fresh.tokens)


def test_text_with_characters_of_several_tokens(smollm: pydflash2.Llama) -> None:
    text = "Repeat: naïve café, 東京, 🙂🙃, Ωμέγα. Repeat: naïve café, 東京, 🙂🙃, Ωμέγα. Repeat:"
    ids = smollm.tokenize(text)
    assert smollm.detokenize(ids) == text
    got = smollm.generate(ids, max_tokens=40)
    assert got.text == smollm.detokenize(got.tokens)


def test_prefill_progress_and_its_exceptions(smollm: pydflash2.Llama) -> None:
    prompt = smollm.tokenize("one two three four five six seven eight " * 90)
    assert len(prompt) > 512
    seen: list[tuple[int, int]] = []
    smollm.session.rewind(0)
    smollm.generate(prompt, max_tokens=1, on_prefill=lambda done, total: seen.append((done, total)))
    assert seen == [(512, len(prompt)), (len(prompt), len(prompt))]

    def stop(n_done: int, n_total: int) -> None:
        raise LookupError("a caller's own")

    smollm.session.rewind(0)
    with pytest.raises(LookupError, match="a caller's own"):
        smollm.generate(prompt, max_tokens=1, on_prefill=stop)
    assert smollm.session.tokens == tuple(prompt[:512])
    got = smollm.generate(prompt, max_tokens=1)
    assert got.stats.n_prefill == len(prompt) - 512


def test_ctrl_c_leaves_the_sequence_in_order(
    smollm: pydflash2.Llama, prompt: list[int], reference: pydflash2.Completion
) -> None:
    for _ in range(5):
        received: list[int] = []
        timer = threading.Timer(0.15, _thread.interrupt_main)
        timer.start()
        with contextlib.suppress(KeyboardInterrupt):
            for chunk in smollm.stream(prompt, max_tokens=900):
                received += chunk.tokens
            pytest.fail("the interrupt did not arrive")
        timer.join()
        n_known = _ffi.library().df2_session_n_tokens(smollm.session._pointer)
        assert smollm.session.n_tokens == n_known
        assert smollm.session.tokens[: len(prompt) + len(received)] == (*prompt, *received)
    assert smollm.generate(prompt, max_tokens=80).tokens == reference.tokens


def test_a_full_context_ends_the_text_and_not_the_model(
    smollm_target: Path, smollm_drafter: Path
) -> None:
    with pydflash2.load(smollm_target, smollm_drafter, n_ctx=256, n_draft=7) as llm:
        prompt = llm.tokenize("red green blue " * 20)  # goes on for ever
        full = llm.generate(prompt, max_tokens=1000)
        assert full.finish_reason == "context"
        n_full = llm.session.n_tokens
        assert 256 <= n_full <= 257
        with pytest.raises(pydflash2.ContextFullError, match="n_ctx"):
            llm.session.step()
        with pytest.raises(pydflash2.ContextFullError):
            llm.session.prefill([1])
        assert llm.session.n_tokens == n_full
        last = llm.session.tokens[200:]
        llm.session.rewind(200)
        again: list[int] = []
        while len(again) < 20:
            again += llm.session.step(20 - len(again)).tokens
        assert_same_or_close(llm, llm.session.tokens[:200], again, last[:20])
        with pytest.raises(pydflash2.ContextFullError, match="larger n_ctx"):
            llm.generate([1] * 300)
        assert llm.generate(prompt, max_tokens=5).finish_reason == "length"


def test_attaching_to_a_llama_cpp_python_model(
    smollm_target: Path, smollm_drafter: Path, reference: pydflash2.Completion, prompt: list[int]
) -> None:
    host = llama_cpp.Llama(str(smollm_target), n_ctx=512, verbose=False)
    before = host.create_completion(prompt, max_tokens=12, temperature=0.0)
    with pydflash2.attach(host, smollm_drafter, n_draft=4) as llm:
        got = llm.generate(prompt, max_tokens=40)
        assert got.stats.n_accepted > 0
        assert_same_or_close(llm, prompt, got.tokens, reference.tokens[:40])
    after = host.create_completion(prompt, max_tokens=12, temperature=0.0)
    assert after["choices"][0]["text"] == before["choices"][0]["text"]
    host.close()


def test_chunk_text_joins_its_pieces() -> None:
    pieces = (pydflash2.Piece("a", True), pydflash2.Piece("b", False))
    assert _generation.Chunk(pieces, (1, 2), 1, 1, None).text == "ab"
