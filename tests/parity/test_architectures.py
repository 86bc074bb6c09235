"""Targets of many architectures, in contexts that the library opens."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import pytest

import pydflash2
from tests.tools.layer_outputs import greedy
from tests.tools.tiny_targets import ARCHITECTURES, write_tiny_target

PROMPT = [7, 23, 99, 4, 150, 31, 31, 8, 77, 12, 140, 66]
N_TOKENS = 60


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target(
    request: pytest.FixtureRequest, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("target") / f"{request.param}.gguf"
    return write_tiny_target(path, str(request.param), tokenizer_from=tiny_target)


def text(target: Path, drafter: Path | None, n_draft: int) -> tuple[list[int], pydflash2.Stats]:
    with pydflash2.load(target, drafter, n_ctx=256, n_draft=n_draft) as llm:
        session = llm.session
        session.prefill(PROMPT)
        while session.n_tokens < len(PROMPT) + N_TOKENS:
            session.step(len(PROMPT) + N_TOKENS - session.n_tokens)
        return list(session.tokens), session.stats()


def test_the_text_is_the_targets_own(target: Path, tiny_drafter: Path) -> None:
    expected, _ = text(target, None, 0)
    assert len(set(expected[len(PROMPT) :])) > 4  # a stuck target would prove little
    for n_draft in range(8):
        generated, stats = text(target, tiny_drafter, n_draft)
        assert generated == expected
        assert n_draft == 0 or stats.n_drafted > 0


def test_texts_vary_and_are_certain(target: Path) -> None:
    """What the tests of identity stand on: a target that repeats itself would prove little, and one
    whose best tokens are nearly equal would go its way by chance."""
    llama = llama_cpp.Llama(str(target), n_ctx=256, n_gpu_layers=0, verbose=False)
    for length in (1, 12, 40):
        text, gap = greedy(llama, [6 + i * 37 % 150 for i in range(length)], N_TOKENS)
        assert len(set(text)) > 4
        assert gap > 1e-3
    llama.close()


def test_a_file_is_the_same_each_time(target: Path, tiny_target: Path, tmp_path: Path) -> None:
    again = write_tiny_target(tmp_path / "again.gguf", target.stem, tokenizer_from=tiny_target)
    assert again.read_bytes() == target.read_bytes()


def test_rewinding_past_a_sliding_window(tiny_target: Path, tmp_path: Path) -> None:
    """A cache cut to the window forgets; the session says so, or decodes all anew."""
    path = write_tiny_target(tmp_path / "gemma3.gguf", "gemma3", tokenizer_from=tiny_target)
    llama = llama_cpp.Llama(
        str(path),
        n_ctx=1024,
        n_batch=32,
        n_ubatch=32,
        swa_full=False,
        n_gpu_layers=0,
        verbose=False,
    )
    target = pydflash2.Target.attach(int(ctypes.cast(llama.ctx, ctypes.c_void_p).value or 0))
    with target, pydflash2.Session(target, checkpoint_bytes=0) as session:
        prompt = [6 + i * 37 % 150 for i in range(400)]
        session.prefill(prompt)
        first = [session.step(1).tokens, session.step().tokens]
        session.rewind(len(prompt) - 2)  # near enough
        session.prefill(prompt[-2:])
        assert [session.step(1).tokens, session.step().tokens] == first
        n_before = session.n_tokens
        with pytest.raises(pydflash2.RewindError, match="rewind to 0"):
            session.rewind(40)
        assert session.n_tokens == n_before
        session.rewind(0)
        session.prefill(prompt)
        assert [session.step(1).tokens, session.step().tokens] == first
        session.close()
        with pydflash2.Session(target) as session:  # decodes all anew by itself
            session.prefill(prompt)
            session.rewind(40)
            session.prefill(prompt[40:])
            assert [session.step(1).tokens, session.step().tokens] == first
            assert (session.stats().n_restored, session.stats().n_checkpoints) == (1, 0)
    llama.close()
