"""Number formats of the K/V caches, the target's and the drafter's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import pydflash2
from pydflash2._options import CACHE_TYPES
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_targets import write_tiny_target

PROMPTS = [[6 + (i * 37 + n) % 150 for i in range(70)] for n in range(3)]
N_TOKENS = 40


@pytest.fixture(scope="module")
def model(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64 elements: llama.cpp rotates what it quantises of these."""
    path = tmp_path_factory.mktemp("targets") / "target.gguf"
    return write_tiny_target(path, "qwen2", tokenizer_from=tiny_target, head_size=64)


def texts(
    target: pydflash2.Target, drafter: pydflash2.Drafter | None, n_draft: int
) -> tuple[list[list[int]], int]:
    """Greedy texts, and how many of their tokens were drafted."""
    found = []
    with pydflash2.Session(target, drafter, n_draft=n_draft, ignore_end=True) as session:
        for prompt in PROMPTS:
            session.rewind(0)
            session.prefill(prompt)
            while session.n_tokens < len(prompt) + N_TOKENS:
                session.step(len(prompt) + N_TOKENS - session.n_tokens)
            found.append(list(session.tokens[len(prompt) :]))
        return found, session.stats().n_accepted


@pytest.mark.parametrize(
    ("keys", "values"), [*zip(CACHE_TYPES, CACHE_TYPES, strict=True), ("q8_0", "q4_0")]
)
def test_drafting_changes_no_text(keys: Any, values: Any, model: Path, tmp_path: Path) -> None:
    if pydflash2.enable_kernels().state != "active":
        pytest.skip("kernels are not in use")
    with pydflash2.Target(
        model, n_ctx=512, n_threads=2, cache_type_k=keys, cache_type_v=values
    ) as target:
        expected, _ = texts(target, None, 0)
        path = write_bigram_drafter(
            tmp_path / "drafter.gguf", expected, target=model, n_vocab=target.vocab.n_tokens
        )
        with pydflash2.Drafter(path) as drafter:
            found, n_accepted = texts(target, drafter, 7)
    assert found == expected
    assert n_accepted > 0


def test_the_types_are_those_of_the_cache(model: Path) -> None:
    """By the size of what llama.cpp saves of a sequence: per token, layer and K/V head."""
    bits = dict(zip(CACHE_TYPES, (16, 32, 16, 8.5, 4.5, 5, 5.5, 6, 4.5), strict=True))
    n_elements = len(PROMPTS[0]) * 4 * 2 * 64
    plain = 0
    for keys, values in (*((name, "f16") for name in CACHE_TYPES), ("f16", "q5_1")):
        types: Any = {"cache_type_k": keys, "cache_type_v": values}
        with (
            pydflash2.Target(model, n_ctx=256, **types) as target,
            pydflash2.Session(target, n_draft=0) as session,
        ):
            session.prefill(PROMPTS[0])
            size = llama_cpp.llama_state_seq_get_size(target._context, 0)
        plain = plain or size  # both f16
        assert size - plain == n_elements * (bits[keys] + bits[values] - 32) / 8, types


@pytest.mark.parametrize("pair", [("q4_0", "f16"), ("f16", "q8_0")])
def test_blocks_that_do_not_fit_the_heads(pair: tuple[Any, Any], tiny_target: Path) -> None:
    words = rf"K/V cache of types {pair[0]} and {pair[1]}.*does not divide.*16.*cache_type_k"
    with pytest.raises(pydflash2.InvalidArgumentError, match=words):
        pydflash2.load(tiny_target, n_ctx=256, cache_type_k=pair[0], cache_type_v=pair[1])


@pytest.mark.parametrize("kernels", [True, False])
def test_the_drafters_cache(kernels: bool, tiny_target: Path, tmp_path: Path) -> None:
    """What a type rounds away is seen in the scores, and little else."""
    path = write_tiny_drafter(tmp_path / "d.gguf", TinyDrafter(head_dim=32), target=tiny_target)
    scores = {}
    for name in CACHE_TYPES:
        with pydflash2.load(
            tiny_target, path, n_ctx=256, kernels=kernels, cache_type=name, n_draft=7
        ) as llm:
            llm.session.prefill(PROMPTS[0])
            llm.session.step(1)
            scores[name] = np.sort(llm.session.draft(1).scores[0])
    errors = {name: np.abs(found - scores["f32"]).max() for name, found in scores.items()}
    spread = np.ptp(scores["f32"])
    assert errors["f16"] < 0.01 * spread
    for name in ("bf16", "q8_0"):
        assert 0 < errors[name] < 0.05 * spread, (name, errors, spread)
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"):
        assert errors["q8_0"] < errors[name] < 0.5 * spread, (name, errors, spread)
