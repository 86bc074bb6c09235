"""Greedy text with drafting is the text without, for targets of every make and drafts of every
length, by a drafter that is right about half of the time.

By default a sample of the prompts and lengths; DF2_FULL=1 runs 20 prompts with each of them (about
15 minutes), and -s shows how many drafted tokens were accepted.

Needs the kernels, as test_attach_architectures.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from tests.tools import recurrent_targets, tiny_targets
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.layer_outputs import plain_texts

IS_FULL = os.environ.get("DF2_FULL") == "1"
N_VOCAB = 160
N_TOKENS = 64
PROMPTS = [
    [6 + (i + 11 * k) * 37 % 150 for i in range(length)]
    for k, length in enumerate([1, 12, 40, *range(2, 70, 4)] if IS_FULL else [1, 12, 40])
]
SETTINGS: list[tuple[int | str, int]] = [(1, 1), (3, 1), ("auto", 1), (7, 2)]
if IS_FULL:
    SETTINGS = [(n_draft, 1) for n_draft in (*range(1, 8), "auto")] + [(7, 2)]
"""Draft lengths and numbers of threads."""

ARCHITECTURES = ("llama", *tiny_targets.ARCHITECTURES, *recurrent_targets.ARCHITECTURES)

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


def write_target(folder: Path, architecture: str, tiny_target: Path) -> tuple[Path, int]:
    """The target, and how many layers it has."""
    path = folder / f"{architecture}.gguf"
    if architecture == "llama":
        return tiny_target, 4
    if architecture in tiny_targets.ARCHITECTURES:
        tiny_targets.write_tiny_target(path, architecture, tokenizer_from=tiny_target)
        return path, tiny_targets.n_layers(architecture)
    recurrent_targets.write_recurrent_target(path, architecture, tokenizer_from=tiny_target)
    return path, recurrent_targets.n_layers(architecture)


def reciting(path: Path, target: Path, n_layer: int, text: list[int]) -> Path:
    """A drafter that knows three quarters of a text, and of these one follower of each token."""
    return write_bigram_drafter(
        path,
        [text[: len(text) * 3 // 4]],
        target=target,
        n_vocab=N_VOCAB,
        taps=(1, n_layer // 2 + 1, n_layer),  # the last layer too
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_is_the_targets(architecture: str, tiny_target: Path, tmp_path: Path) -> None:
    path, n_layer = write_target(tmp_path, architecture, tiny_target)
    n_drafted = dict.fromkeys(SETTINGS, 0)
    n_accepted = dict.fromkeys(SETTINGS, 0)
    for prompt, text in zip(PROMPTS, plain_texts(path, PROMPTS, N_TOKENS), strict=True):
        drafter = reciting(tmp_path / "bigrams.gguf", path, n_layer, prompt + text)
        for setting in SETTINGS:
            n_draft, n_threads = setting
            options: dict[str, Any] = {"n_draft": n_draft, "n_threads": n_threads}
            with pydflash2.load(path, drafter, n_ctx=256, **options) as llm:
                got = llm.generate(prompt, max_tokens=N_TOKENS)
            assert list(got.tokens) == text, (len(prompt), setting)
            n_drafted[setting] += got.stats.n_drafted
            n_accepted[setting] += got.stats.n_accepted
            # what is decoded again stays within a block, whatever is rejected
            assert got.stats.n_replayed <= 8 * got.stats.n_cycles
    for setting in SETTINGS:
        print(f"{architecture} {setting}: {n_accepted[setting]} of {n_drafted[setting]} accepted")
        assert setting[0] == "auto" or 0 < n_accepted[setting] < n_drafted[setting], setting
