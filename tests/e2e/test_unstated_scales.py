"""Drafters that use the embeddings and the head of a target which scales them, with and without a
word about that in their file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydflash2
from tests.tools.renamed_target import write_renamed_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_targets import write_tiny_target

PROMPT = [7, 23, 99, 4, 31]

SCALES = {
    "gemma3": 8.0,  # the square root of the hidden size
    "granite": 12.5,  # a key of the file
    "minicpm": 12.0,  # a constant, unless the file says otherwise
    "qwen2": 1.0,
}
KEYS: dict[str, Any] = {
    "granite": {
        "embedding_scale": 12.5,
        "logit_scale": 4.0,
        "attention.scale": 0.25,
        "residual_scale": 0.5,
    },
    "minicpm": {},
}

Draft = Callable[..., tuple[pydflash2.Draft, list[str]]]


@pytest.fixture
def draft(tmp_path: Path, tiny_target: Path, caplog: pytest.LogCaptureFixture) -> Draft:
    """A random drafter's draft for a target, and what the library warned of."""

    def made(architecture: str, keys: dict[str, Any], *extras: str) -> tuple[Any, list[str]]:
        target = tmp_path / "target.gguf"
        if architecture in KEYS:
            write_renamed_target(target, tiny_target, architecture, KEYS[architecture])
        else:
            write_tiny_target(target, architecture, tokenizer_from=tiny_target)
        shape = TinyDrafter(keys=keys, extras=frozenset(extras))
        path = write_tiny_drafter(tmp_path / "drafter.gguf", shape, target=target)
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "pydflash2"),
            pydflash2.load(target, path, n_ctx=128, n_draft=4) as llm,
        ):
            llm.session.prefill(PROMPT)
            llm.session.step(1)
            return llm.session.draft(4), list(caplog.messages)

    return made


@pytest.mark.parametrize(("architecture", "scale"), SCALES.items())
def test_an_unstated_embedding_scale_is_the_targets(
    draft: Draft, architecture: str, scale: float
) -> None:
    logits = {"logit_scale": 1.0}  # about which there is nothing to say here
    found, warnings = draft(architecture, logits)
    wanted, no_warnings = draft(architecture, logits | {"embedding_scale": scale})
    assert np.array_equal(found.hidden, wanted.hidden)
    assert not no_warnings
    if scale == 1.0:
        assert not warnings
        return
    (warning,) = warnings
    assert f"the target's is used, {scale:g} ('{architecture}')" in warning
    unscaled, no_warnings = draft(architecture, logits | {"embedding_scale": 1.0})
    assert not np.allclose(unscaled.hidden, wanted.hidden, atol=0.01)
    assert not no_warnings


def test_embeddings_of_the_drafters_own_are_not_scaled(draft: Draft) -> None:
    found, warnings = draft("gemma3", {}, "token_embd")
    wanted, _ = draft("gemma3", {"embedding_scale": 1.0}, "token_embd")
    assert np.array_equal(found.hidden, wanted.hidden)
    assert not warnings


@pytest.mark.parametrize("architecture", ["muse-glimmer", "granite"])
def test_an_unstated_scale_of_the_logits_is_told(draft: Draft, architecture: str) -> None:
    embeddings = {"embedding_scale": 1.0}
    found, (warning,) = draft(architecture, embeddings)
    assert "neither dflash.logit_scale nor dflash.final_logit_softcapping" in warning
    assert architecture in warning
    wanted, warnings = draft(architecture, embeddings | {"logit_scale": 1.0})
    assert np.array_equal(found.logits, wanted.logits)
    assert not warnings
    assert not draft(architecture, embeddings | {"final_logit_softcapping": 30.0})[1]
    assert not draft(architecture, embeddings, "output")[1]
