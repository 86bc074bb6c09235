"""The low-level objects on the tiny fixture models."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import pydflash2
from pydflash2 import _ffi
from pydflash2._llama_cpp import Sampler
from tests.tools.convert_support import read_safetensors

DRAFTERS = ("tiny-plain", "tiny-window", "tiny-softcap", "tiny-v1")


def golden(root: Path, name: str) -> dict[str, np.ndarray]:
    """A fixture's golden.safetensors."""
    return read_safetensors(root / "tests" / "data" / "fixtures" / name / "golden.safetensors")


@pytest.mark.parametrize("name", DRAFTERS)
def test_golden_text(
    root: Path, tiny_target: Path, tiny_drafters: dict[str, Path], name: str
) -> None:
    expected = golden(root, name)
    prompt = expected["prompt_ids"].tolist()
    with pydflash2.load(tiny_target, tiny_drafters[name], n_ctx=256) as llm:
        got = llm.generate(prompt, max_tokens=40)
    assert list(got.tokens) == expected["greedy_output_ids"][len(prompt) :][:40].tolist()


def test_drafter_info(tiny_drafters: dict[str, Path]) -> None:
    with pydflash2.Drafter(tiny_drafters["tiny-plain"]) as drafter:
        info = drafter.info
    assert (info.version, info.block_size, info.n_embd, info.n_vocab) == (2, 8, 64, 160)
    assert info.tap_layers == (1, 3)
    assert (info.conv_kernel_size, info.conv_group_size) == (2, 16)
    assert (info.selector_rank, info.selector_top_k) == (8, 4)
    assert info.is_causal is False
    assert info.weights_bytes > 0
    assert pydflash2.Drafter(tiny_drafters["tiny-v1"], version=1).info.selector_rank == 0


def test_a_context_is_rounded_up(tiny_target: Path) -> None:
    """By llama.cpp; n_ctx tells what there really is."""
    for asked, made in ((1, 256), (256, 256), (257, 512)):
        with pydflash2.Target(tiny_target, n_ctx=asked) as target:
            assert target.n_ctx == made
            with pydflash2.Session(target, ignore_end=True) as session:
                session.prefill([5 + i % 150 for i in range(made - 1)])
                session.step()
                with pytest.raises(pydflash2.ContextFullError):
                    session.prefill([5, 6])


def test_a_step_after_a_prefill_is_one_token(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    session.prefill([5, 6, 7])
    step = session.step()
    assert (len(step.tokens), step.n_drafted, step.n_accepted) == (1, 0, 0)
    step = session.step()
    assert step.n_drafted == 7
    assert len(step.tokens) == step.n_accepted + 1
    assert session.n_tokens == 4 + len(step.tokens)
    assert session.tokens[:3] == (5, 6, 7)
    assert session.n_tokens == _ffi.library().df2_session_n_tokens(session._pointer)


def test_rewinding_and_going_on_equals_a_fresh_start(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    session.prefill(range(10, 40))
    while session.n_tokens < 60:
        session.step(60 - session.n_tokens)
    whole = session.tokens
    for n in (59, 45, 30, 29, 12, 1):
        session.rewind(n)
        assert session.tokens == whole[:n]
        if n < 50:
            session.prefill(whole[n:50])
        while session.n_tokens < 60:
            session.step(60 - session.n_tokens)
        assert session.tokens == whole


def test_draft_shows_arrays_and_changes_nothing(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    session.prefill(range(10, 40))
    session.step()
    before = session.tokens
    draft = session.draft(5)
    assert draft.tokens.shape == (5,)
    assert draft.candidates.shape == draft.scores.shape == (5, 4)
    assert draft.hidden.shape == (6, 64)
    assert draft.logits.shape == (5, 160)
    assert session.tokens == before
    np.testing.assert_array_equal(draft.candidates[:, 0], draft.logits.argmax(axis=1))
    kept = draft.logits.copy()
    session.step()
    np.testing.assert_array_equal(draft.logits, kept)  # a copy, not the session's memory
    with pytest.raises(pydflash2.InvalidArgumentError):
        session.draft(8)


def test_threads_that_draft(tiny_target: Path, tiny_drafter: Path) -> None:
    """Their number changes nothing but the speed, and cannot exceed the target's."""
    drafts = []
    for n_threads_draft in (None, 1, 2, 3):
        with pydflash2.load(
            tiny_target, tiny_drafter, n_ctx=256, n_threads=3, n_threads_draft=n_threads_draft
        ) as llm:
            llm.session.prefill([5, 9, 23, 71])
            llm.session.step(1)
            drafts.append(llm.session.draft(7))
    for other in drafts[1:]:
        assert np.array_equal(other.logits, drafts[0].logits)
        assert np.array_equal(other.tokens, drafts[0].tokens)
    for wrong in (0, 4):
        with pytest.raises(pydflash2.InvalidArgumentError, match="n_threads_draft"):
            pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, n_threads=3, n_threads_draft=wrong)


def test_stats_add_up(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    session.prefill(range(10, 40))
    n_generated = sum(len(session.step().tokens) for _ in range(12))
    stats = session.stats()
    assert stats.n_prefill == 30
    assert stats.n_cycles == 11
    assert stats.n_generated == n_generated
    assert stats.n_drafted == sum(stats.drafted_at) == 77
    assert stats.n_accepted == sum(stats.accepted_at) == n_generated - 12
    assert stats.acceptance_length == pytest.approx((stats.n_accepted + 11) / 11)
    assert stats.prefill_us > 0
    assert stats.draft_us > 0
    assert stats.verify_us > 0
    assert stats.generation_us >= stats.draft_us + stats.verify_us
    assert stats.drafter_cache_bytes > 0
    session.reset_stats()
    assert session.stats().n_generated == 0
    assert session.stats().acceptance_length == 0.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sampling_draws_the_same_with_and_without_drafting(
    tiny: pydflash2.Llama, temperature: float
) -> None:
    options: pydflash2.GenerateOptions = {
        "max_tokens": 60,
        "temperature": temperature,
        "repeat_penalty": 1.1,
        "seed": 7,
    }
    prompt = list(range(10, 40))
    drafted = tiny.generate(prompt, **options)
    assert drafted.stats.n_drafted > 0
    again = tiny.generate(prompt, **options)
    tiny.set_drafting(False)
    plain = tiny.generate(prompt, **options)
    assert drafted.tokens == again.tokens == plain.tokens
    other = tiny.generate(prompt, **{**options, "seed": 8})
    assert (other.tokens == plain.tokens) == (temperature == 0.0)


def test_a_repeat_penalty_counts_the_prompt(tiny: pydflash2.Llama) -> None:
    prompt = [50] * 30
    without = tiny.generate(prompt, max_tokens=1)
    repeated = [without.tokens[0]] * 30
    likeliest = tiny.generate(repeated, max_tokens=1).tokens[0]
    penalised = tiny.generate([*repeated, likeliest], max_tokens=1, repeat_penalty=1e6)
    assert penalised.tokens[0] not in (without.tokens[0], likeliest)


def test_a_closed_sampler_is_refused(tiny: pydflash2.Llama) -> None:
    sampler = Sampler(
        tiny.target.vocab,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repeat_penalty=1.0,
        seed=0,
    )
    sampler.close()
    sampler.close()
    with pytest.raises(pydflash2.InvalidArgumentError, match="closed"):
        sampler.accept([1])
    with pytest.raises(pydflash2.InvalidArgumentError, match="closed"):
        tiny.session.set_sampler(sampler)


def test_ignore_end_goes_on(tiny_target: Path) -> None:
    with (
        pydflash2.Target(tiny_target, n_ctx=256) as target,
        pydflash2.Session(target, ignore_end=True) as session,
    ):
        session.prefill([5, 2])
        assert not any(session.step().is_end for _ in range(100))
        assert session.n_tokens == 102


def test_sessions_follow_each_other_on_one_target(tiny_target: Path, tiny_drafter: Path) -> None:
    with pydflash2.Target(tiny_target, n_ctx=256) as target:
        drafter = pydflash2.Drafter(tiny_drafter)
        session = pydflash2.Session(target, drafter)
        with pytest.raises(pydflash2.InvalidArgumentError):
            pydflash2.Session(target)
        drafter.close()  # the session keeps what it needs
        session.prefill([5, 6, 7])
        first = [session.step(1).tokens[0] for _ in range(8)]
        session.close()
        with pydflash2.Session(target) as plain:
            plain.prefill([5, 6, 7])
            assert [plain.step(1).tokens[0] for _ in range(8)] == first


def test_distinct_models_run_on_threads_of_their_own(tiny_target: Path, tiny_drafter: Path) -> None:
    prompt = list(range(10, 40))
    results: dict[int, tuple[int, ...]] = {}

    def work(i: int, drafter: pydflash2.Drafter) -> None:
        with pydflash2.load(tiny_target, drafter, n_ctx=256, n_threads=1) as llm:
            results[i] = llm.generate(prompt, max_tokens=60).tokens

    with pydflash2.Drafter(tiny_drafter) as drafter:
        threads = [threading.Thread(target=work, args=(i, drafter)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 3
    assert len(set(results.values())) == 1


def test_garbage_frees_sessions_before_targets(
    tiny_target: Path, tiny_drafter: Path, tmp_path: Path
) -> None:
    """An open pair in a reference cycle is collected without touching freed memory."""
    code = f"""
import gc
import pydflash2
for _ in range(20):
    llm = pydflash2.load({str(tiny_target)!r}, {str(tiny_drafter)!r}, n_ctx=64)
    llm.generate([5, 6, 7], max_tokens=4)
    llm.me = llm
    del llm
    gc.collect()
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


def test_a_refused_call_leaves_the_token_list_alone(tiny: pydflash2.Llama) -> None:
    """A second thread is refused while the first works, and changes nothing."""
    session = tiny.session
    prompt = [6 + i * 37 % 150 for i in range(200)]
    for _ in range(20):
        session.rewind(0)
        worker = threading.Thread(target=session.prefill, args=(prompt,))
        worker.start()
        while worker.is_alive():
            with contextlib.suppress(pydflash2.InvalidArgumentError):
                # refused, or, once the worker is done, out of range
                session.rewind(10_000)
        worker.join()
        assert list(session.tokens) == prompt


def test_closing_while_another_thread_steps(tiny_target: Path, tiny_drafter: Path) -> None:
    """Closing is refused in the middle of a step and works between two; memory stays sound."""
    for _ in range(5):
        llm = pydflash2.load(tiny_target, tiny_drafter, n_ctx=512, n_draft=3)
        session = llm.session
        session.prefill([5, 6, 7])

        def work(session: pydflash2.Session = session) -> None:
            with contextlib.suppress(pydflash2.Dflash2Error):
                while session.n_tokens < 500:
                    session.step()

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive() and not session.is_closed:
            with contextlib.suppress(pydflash2.InvalidArgumentError):
                session.close()
        worker.join()
        session.close()
        assert session.is_closed
        llm.close()


def test_an_attached_model_may_be_dropped(smollm_target: Path, smollm_drafter: Path) -> None:
    """Without close(): nothing is freed too early, and the model itself goes on correctly."""
    llama = llama_cpp.Llama(str(smollm_target), n_ctx=256, n_gpu_layers=0, verbose=False)
    before = llama("The capital of France is", max_tokens=4, temperature=0.0)
    attached = pydflash2.attach(llama, smollm_drafter)
    attached.generate("Once upon a time", max_tokens=8)
    with pytest.raises(pydflash2.InvalidArgumentError, match="already has a session"):
        pydflash2.attach(llama, smollm_drafter)
    del attached
    gc.collect()
    after = llama("The capital of France is", max_tokens=4, temperature=0.0)
    assert after["choices"][0]["text"] == before["choices"][0]["text"]
    attached = pydflash2.attach(llama, smollm_drafter)
    del llama
    attached.generate("Once upon a time", max_tokens=8)
    del attached
    gc.collect()


def test_text_that_cannot_be_encoded(tiny: pydflash2.Llama) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match="cannot encode"):
        tiny.generate("\u00e9")
