"""Drafts drawn with a temperature, in both forms of the walk, against plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import pydflash2
from tests.tools.exact_target import open_exact

FIXTURES = ("tiny-plain", "tiny-window", "tiny-softcap")
N_DRAFT = 5
TEMPERATURES = (0.4, 1.0, 2.5)
N_DRAWS = 40


@pytest.fixture(scope="module")
def exact_target(tiny_target: Path) -> Iterator[llama_cpp.Llama]:
    llama = open_exact(tiny_target, n_ctx=256)
    yield llama
    llama.close()


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def kernels(request: pytest.FixtureRequest) -> bool:
    """Whether the walk is this library's kernel or made of ggml's nodes."""
    return bool(request.param)


@pytest.fixture(params=FIXTURES)
def session(
    request: pytest.FixtureRequest,
    exact_target: llama_cpp.Llama,
    tiny_drafters: dict[str, Path],
    kernels: bool,
) -> Iterator[pydflash2.Session]:
    drafter = tiny_drafters[request.param]
    with pydflash2.attach(exact_target, drafter, cache_type="f32", kernels=kernels) as llm:
        llm.session.prefill([5, 9, 23, 71, 8, 40])
        llm.session.step(1)
        yield llm.session


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_draws(session: pydflash2.Session, temperature: float) -> None:
    """Each token is the first candidate whose cumulative q exceeds its number."""
    random = np.random.default_rng(7)
    texts = set()
    n_checked = 0
    for _ in range(N_DRAWS):
        uniforms = random.random(N_DRAFT, dtype=np.float32)
        draft = session.draft(N_DRAFT, temperature=temperature, uniforms=uniforms)
        texts.add(tuple(draft.tokens.tolist()))
        weights = np.exp((draft.scores - draft.scores.max(axis=1, keepdims=True)) / temperature)
        q = weights / weights.sum(axis=1, keepdims=True)
        assert np.allclose(draft.q, q, rtol=1e-4, atol=1e-6)
        cumulative = draft.q.astype(np.float64).cumsum(axis=1)
        for i, uniform in enumerate(uniforms):
            if np.abs(cumulative[i] - uniform).min() < 1e-5:
                continue  # rounding decides
            chosen = int(np.argmax(cumulative[i] > uniform))
            assert draft.tokens[i] == draft.candidates[i, chosen]
            assert draft.tokens_q[i] == draft.q[i, chosen]
            n_checked += 1
    assert n_checked > 0.9 * N_DRAWS * N_DRAFT
    assert len(texts) > N_DRAWS // 2


def test_the_edges_of_what_can_be_drawn_with(session: pydflash2.Session) -> None:
    """A tiny temperature is greedy, and no number draws what has no probability."""
    for temperature in (1e-40, 1e-20, 1e-7):
        for uniform in (0.0, 0.5, 1.0 - 2.0**-24):
            draft = session.draft(
                N_DRAFT, temperature=temperature, uniforms=np.full(N_DRAFT, uniform)
            )
            best = np.argmax(draft.scores, axis=1)
            assert draft.tokens.tolist() == draft.candidates[np.arange(N_DRAFT), best].tolist()
            assert np.all(draft.tokens_q > 0.99)
            assert np.all(np.isfinite(draft.q))


def test_scores_follow_the_path(session: pydflash2.Session) -> None:
    """What is drawn at one position changes the next one's scores, but not its candidates."""
    low = session.draft(2, temperature=1.0, uniforms=[0.0, 0.5])
    high = session.draft(2, temperature=1.0, uniforms=[0.9999, 0.5])
    assert low.tokens[0] != high.tokens[0]
    assert low.candidates.tolist() == high.candidates.tolist()
    assert low.scores[0].tolist() == high.scores[0].tolist()
    assert low.scores[1].tolist() != high.scores[1].tolist()


def test_both_forms_draw_the_same(
    exact_target: llama_cpp.Llama, tiny_drafters: dict[str, Path]
) -> None:
    drafts = []
    for kernels in (True, False):
        drafter = tiny_drafters["tiny-plain"]
        with pydflash2.attach(exact_target, drafter, cache_type="f32", kernels=kernels) as llm:
            llm.session.prefill([5, 9, 23, 71, 8, 40])
            llm.session.step(1)
            drafts.append(llm.session.draft(3, temperature=0.8, uniforms=[0.1, 0.6, 0.35]))
    fused, plain = drafts
    assert fused.tokens.tolist() == plain.tokens.tolist()
    assert fused.candidates.tolist() == plain.candidates.tolist()
    assert np.allclose(fused.scores, plain.scores, rtol=1e-4, atol=1e-4)
    assert np.allclose(fused.q, plain.q, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_drawn_with(session: pydflash2.Session) -> None:
    wrong: tuple[tuple[Any, Any], ...] = (
        (-1.0, None),
        (float("nan"), [0.5, 0.5]),
        (1.0, None),
        (1.0, [0.5]),
        (1.0, [0.5, 1.0]),
        (1.0, [0.5, float("nan")]),
        (0.0, [0.5, 0.5]),
        (1.0, "half"),
        ("hot", None),
        (10**400, [0.5, 0.5]),
    )
    for temperature, uniforms in wrong:
        with pytest.raises(pydflash2.InvalidArgumentError):
            session.draft(2, temperature=temperature, uniforms=uniforms)
    assert session.draft(2).tokens.shape == (2,)
