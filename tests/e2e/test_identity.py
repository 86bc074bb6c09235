"""Greedy text with drafting is greedy text without, byte for byte.

With the kernels on, a token's logits have the same bits whether it is decoded alone or in a block,
on however many threads, and however its prompt was cut into batches (tests/parity says so of
logits). docs/identity.md lists what is promised.

By default a sample; DF2_FULL=1 runs 200 prompts of 128 tokens in four quantisations, and 20
prompts after 4,000 tokens of context, each on 1 and 2 threads (about an hour). With
DF2_SLIDING_TARGET=FILE, the model with a sliding window is that one, such as Gemma 3, instead
of a tiny random one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.prompts import questions
from tests.tools.quantise import requantised
from tests.tools.tiny_targets import write_tiny_target

IS_FULL = os.environ.get("DF2_FULL") == "1"
TYPES = ["Q4_1", "Q4_0", "Q4_K_M", "Q8_0"] if IS_FULL else ["Q4_1", "Q4_K_M"]
N_PROMPTS = 200 if IS_FULL else 4
N_LONG_PROMPTS = 20 if IS_FULL else 1
N_LONG_CONTEXT = 4000 if IS_FULL else 700
N_TOKENS = 128 if IS_FULL else 48
THREADS = (1, 2)


@pytest.fixture(autouse=True)
def _kernels_in_use() -> None:
    found = pydflash2.enable_kernels()
    if found.state != "active":
        pytest.skip(f"kernels are not in use: {found.note}")


@pytest.fixture(scope="module", params=TYPES)
def model(
    request: pytest.FixtureRequest, smollm_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """SmolLM2 in one type."""
    if request.param == "Q4_1":
        yield smollm_target
        return
    yield requantised(smollm_target, request.param, folder=tmp_path_factory.mktemp("quantised"))


def generate(session: pydflash2.Session, prompt: list[int]) -> list[int]:
    """The greedy continuation, end-of-generation tokens ignored."""
    session.rewind(0)
    session.prefill(prompt)
    while session.n_tokens < len(prompt) + N_TOKENS:
        session.step(len(prompt) + N_TOKENS - session.n_tokens)
    return list(session.tokens[len(prompt) :])


def texts(
    target: pydflash2.Target,
    drafter: pydflash2.Drafter | None,
    n_draft: int,
    prompts: list[list[int]],
) -> list[list[int]]:
    with pydflash2.Session(target, drafter, n_draft=n_draft, ignore_end=True) as session:
        return [generate(session, prompt) for prompt in prompts]


def chat_prompts(model: Path, n: int) -> list[list[int]]:
    with pydflash2.load(model, n_ctx=512) as llm:
        return [llm.format_chat([{"role": "user", "content": text}]) for text in questions(n)]


def test_texts(model: Path, smollm_drafter: Path) -> None:
    prompts = chat_prompts(model, N_PROMPTS)
    expected: list[list[int]] | None = None
    for n_threads in THREADS:
        with (
            pydflash2.Target(model, n_ctx=512, n_threads=n_threads) as target,
            pydflash2.Drafter(smollm_drafter) as drafter,
        ):
            if expected is None:
                expected = texts(target, None, 0, prompts)
            for n_draft in (1, 4, 7) if n_threads == 2 and not IS_FULL else (7,):
                assert texts(target, drafter, n_draft, prompts) == expected, (n_threads, n_draft)


def test_texts_after_a_long_context(model: Path, smollm_drafter: Path) -> None:
    short = chat_prompts(model, N_LONG_PROMPTS + 60)
    filler = [token for prompt in short[N_LONG_PROMPTS:] for token in prompt]
    filler = (filler * (N_LONG_CONTEXT // len(filler) + 1))[:N_LONG_CONTEXT]
    prompts = [filler + prompt for prompt in short[:N_LONG_PROMPTS]]
    n_ctx = N_LONG_CONTEXT + 512
    expected: list[list[int]] | None = None
    for n_threads in THREADS:
        with (
            pydflash2.Target(model, n_ctx=n_ctx, n_threads=n_threads) as target,
            pydflash2.Drafter(smollm_drafter) as drafter,
        ):
            if expected is None:
                expected = texts(target, None, 0, prompts)
            assert texts(target, drafter, 7, prompts) == expected, n_threads


def test_the_batch_of_the_prompt_does_not_matter(smollm_target: Path, smollm_drafter: Path) -> None:
    prompts = chat_prompts(smollm_target, 3)
    found = []
    for n_batch in (16, 64, 512):
        with (
            pydflash2.Target(smollm_target, n_ctx=512, n_batch=n_batch) as target,
            pydflash2.Drafter(smollm_drafter) as drafter,
        ):
            found.append(texts(target, drafter, 7, prompts))
    assert found[0] == found[1] == found[2]


def test_texts_with_a_sliding_window(tiny_target: Path, tmp_path: Path) -> None:
    given = os.environ.get("DF2_SLIDING_TARGET")
    if given is None:
        model = write_tiny_target(tmp_path / "gemma3.gguf", "gemma3", tokenizer_from=tiny_target)
        prompts = [[6 + (i * 37 + n) % 150 for i in range(40)] for n in range(4)]
    else:
        model = Path(given)
        with pydflash2.load(model, n_ctx=512) as llm:
            prompts = [llm.tokenize(question) for question in questions(N_PROMPTS)]
        filler = [token for prompt in prompts for token in prompt] * 30
        prompts += [filler[:2000] + prompt for prompt in prompts[:N_LONG_PROMPTS]]
    expected: list[list[int]] | None = None
    for n_threads in THREADS:
        with pydflash2.Target(model, n_ctx=2560, n_threads=n_threads) as target:
            if expected is None:
                expected = texts(target, None, 0, prompts)
                path = write_bigram_drafter(
                    tmp_path / "drafter.gguf", expected, target=model, n_vocab=target.vocab.n_tokens
                )
            with (
                pydflash2.Drafter(path) as drafter,
                pydflash2.Session(target, drafter, n_draft=7, ignore_end=True) as session,
            ):
                assert [generate(session, prompt) for prompt in prompts] == expected, n_threads
                assert session.stats().n_accepted > 0


# A cache of window + RING_BATCH tokens has 256 cells: texts of RING_TOKENS go around four times, so
# that blocks of drafts lie across its end.
RING_WINDOW, RING_BATCH, RING_TOKENS = 200, 32, 1000
RING_PROMPTS = [[6 + (i * 37 + n) % 150 for i in range(70 + n)] for n in range(2)]


@pytest.fixture(scope="module")
def ring_model(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "gemma3.gguf"
    return write_tiny_target(path, "gemma3", tokenizer_from=tiny_target, window=RING_WINDOW)


def ring_target(model: Path, *, swa_full: bool, n_threads: int = 1) -> pydflash2.Target:
    return pydflash2.Target(
        model,
        n_ctx=RING_TOKENS + 24,
        n_batch=RING_BATCH,
        n_threads=n_threads,
        swa_full=swa_full,
    )


def ring_texts(session: pydflash2.Session) -> list[list[int]]:
    found = []
    for prompt in RING_PROMPTS:
        session.rewind(0)
        session.prefill(prompt)
        while session.n_tokens < RING_TOKENS:
            session.step(RING_TOKENS - session.n_tokens)
        found.append(list(session.tokens))
    return found


def test_texts_in_a_cache_cut_to_the_window(ring_model: Path, tmp_path: Path) -> None:
    with (
        ring_target(ring_model, swa_full=True) as target,
        pydflash2.Session(target, ignore_end=True) as session,
    ):
        expected = ring_texts(session)
        n_vocab = target.vocab.n_tokens
    path = write_bigram_drafter(
        tmp_path / "drafter.gguf", expected, target=ring_model, n_vocab=n_vocab
    )
    with pydflash2.Drafter(path) as drafter:
        for n_threads in THREADS:
            with ring_target(ring_model, swa_full=False, n_threads=n_threads) as target:
                for given in (None, drafter):
                    n_draft = 0 if given is None else 7
                    with pydflash2.Session(
                        target, given, n_draft=n_draft, ignore_end=True
                    ) as session:
                        assert ring_texts(session) == expected, (n_threads, n_draft)
                        assert given is None or session.stats().n_accepted > 0


def test_texts_in_a_context_of_the_programs_own(ring_model: Path, tmp_path: Path) -> None:
    """Its micro-batches are shorter than a block, and more than one of them cannot be undone."""
    llama = llama_cpp.Llama(
        str(ring_model),
        n_ctx=RING_TOKENS + 24,
        n_batch=RING_BATCH,
        n_ubatch=4,
        n_threads=1,
        n_gpu_layers=0,
        swa_full=False,
        flash_attn=True,
        verbose=False,
    )
    address = int(ctypes.cast(llama.ctx, ctypes.c_void_p).value or 0)
    with pydflash2.Target.attach(address, n_batch=RING_BATCH) as target:
        with pydflash2.Session(target, ignore_end=True) as session:
            expected = ring_texts(session)
        path = write_bigram_drafter(
            tmp_path / "drafter.gguf", expected, target=ring_model, n_vocab=target.vocab.n_tokens
        )
        with (
            pydflash2.Drafter(path) as drafter,
            pydflash2.Session(target, drafter, n_draft=7, ignore_end=True) as session,
        ):
            assert ring_texts(session) == expected
            stats = session.stats()
            assert 0 < stats.n_accepted < stats.n_drafted <= 3 * stats.n_cycles
    llama.close()


def test_logits_in_a_cache_cut_to_the_window(ring_model: Path) -> None:
    """Whatever pieces the text comes in, and with what is rejected between them."""
    tokens = [6 + i * i % 150 for i in range(RING_TOKENS)]

    def logits(
        widths: list[int], n_rejected: int, *, swa_full: bool
    ) -> dict[int, npt.NDArray[np.float32]]:
        found = {}
        with (
            ring_target(ring_model, swa_full=swa_full) as target,
            pydflash2.Session(target) as session,
        ):
            while (n := session.n_tokens) < RING_TOKENS - RING_BATCH:
                width = widths[n % len(widths)]
                session.prefill(tokens[n : n + width])
                row = llama_cpp.llama_get_logits_ith(target.context_address, -1)
                found[n + width] = np.ctypeslib.as_array(row, (target.vocab.n_tokens,)).copy()
                if n_rejected > 0:
                    session.prefill(tokens[:n_rejected])
                    session.rewind(n + width)
        return found

    expected = logits([1], 0, swa_full=True)
    for widths, n_rejected in (([1], 0), ([5, 1, 3, 7], 0), ([2, 9], 3)):
        found = logits(widths, n_rejected, swa_full=False)
        compared = found.keys() & expected.keys()
        assert len(compared) > 100
        assert all(np.array_equal(found[n], expected[n]) for n in compared), widths


def test_the_command_cuts_the_cache(ring_model: Path, tmp_path: Path) -> None:
    for option, n_cells in (((), 1024), (("--no-swa-full",), 768)):  # window + 512 in whole 256s
        command = (sys.executable, "-m", "pydflash2", "generate", "-v", "-m", ring_model)
        done = subprocess.run(
            [*command, *option, "-c", "1024", "-n", "4", "hello"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert f"creating     SWA KV cache, size = {n_cells} cells" in done.stderr
