"""The drafter against values computed by the reference implementation (see tests/data/fixtures).

The target runs in float32 with a float32 cache and without flash attention, so that the only
differences left are the order of additions: relative 1e-4 is generous.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from tests.tools.convert_support import read_safetensors
from tests.tools.exact_target import open_exact

FIXTURES = ("tiny-plain", "tiny-window", "tiny-softcap", "tiny-v1")
TOLERANCE = 1e-4

Array = npt.NDArray[np.generic]
Golden = dict[str, Array]


@pytest.fixture(scope="module")
def exact_target(tiny_target: Path) -> Iterator[llama_cpp.Llama]:
    llama = open_exact(tiny_target, n_ctx=256)
    yield llama
    llama.close()


@pytest.fixture(params=FIXTURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def golden(name: str, root: Path) -> Golden:
    return read_safetensors(root / "tests" / "data" / "fixtures" / name / "golden.safetensors")


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def kernels(request: pytest.FixtureRequest) -> bool:
    """Both forms of the drafter's operations: on this library's kernels, and as ggml's nodes."""
    return bool(request.param)


@pytest.fixture
def session(
    name: str, exact_target: llama_cpp.Llama, tiny_drafters: dict[str, Path], kernels: bool
) -> Iterator[pydflash2.Session]:
    drafter = tiny_drafters[name]
    with pydflash2.attach(exact_target, drafter, cache_type="f32", kernels=kernels) as llm:
        yield llm.session


def relative_error(values: npt.NDArray[np.float32], expected: Array) -> float:
    return float(np.abs(values - expected).max() / np.abs(expected).max())


def check_draft(session: pydflash2.Session, golden: Golden) -> None:
    """The longest draft: hidden states, logits, candidates and path."""
    n_draft = len(golden["block_ids"]) - 1
    assert session.tokens[-1] == golden["block_ids"][0]
    draft = session.draft(n_draft)
    assert relative_error(draft.hidden, golden["draft_hidden"]) < TOLERANCE
    assert relative_error(draft.logits, golden["draft_logits"]) < TOLERANCE
    assert list(draft.tokens) == golden["draft_path"].tolist()
    if "candidates" in golden:
        assert np.array_equal(np.sort(draft.candidates, axis=1), golden["candidates"])
    best = np.argmax(golden["draft_logits"], axis=1)
    assert np.array_equal(draft.candidates[:, 0], best)


def test_one_pass(session: pydflash2.Session, golden: Golden) -> None:
    session.prefill(golden["prompt_ids"].tolist())
    session.step(1)
    check_draft(session, golden)


@pytest.mark.parametrize("n_chunk", [1, 2, 5, 22])
def test_chunked_injection(session: pydflash2.Session, golden: Golden, n_chunk: int) -> None:
    prompt = golden["prompt_ids"].tolist()
    for i in range(0, len(prompt), n_chunk):
        session.prefill(prompt[i : i + n_chunk])
    session.step(1)
    check_draft(session, golden)


def test_after_a_rewind_to_every_position(session: pydflash2.Session, golden: Golden) -> None:
    prompt = golden["prompt_ids"].tolist()
    session.prefill(prompt)
    session.step(1)
    for n_kept in range(1, len(prompt) + 1):
        # past the prompt first, so that there is something of each kind to forget
        session.step()
        session.rewind(n_kept)
        session.prefill(prompt[n_kept:]) if n_kept < len(prompt) else None
        if n_kept < len(prompt):
            session.step(1)
        else:
            assert session.step(1).tokens[0] == golden["block_ids"][0]
        check_draft(session, golden)


def test_drafting_twice_changes_nothing(session: pydflash2.Session, golden: Golden) -> None:
    session.prefill(golden["prompt_ids"].tolist())
    session.step(1)
    for n_draft in range(1, len(golden["block_ids"])):
        session.draft(n_draft)
    check_draft(session, golden)


def test_text(session: pydflash2.Session, golden: Golden) -> None:
    """Generated with every draft length, the text is what the reference's target says alone."""
    prompt = golden["prompt_ids"].tolist()
    expected = golden["greedy_output_ids"].tolist()[: len(prompt) + 40]
    for n_draft in range(len(golden["block_ids"])):
        session.rewind(0)
        session.set_n_draft(n_draft)
        session.prefill(prompt)
        while session.n_tokens < len(expected):
            session.step(len(expected) - session.n_tokens)
        assert list(session.tokens) == expected
