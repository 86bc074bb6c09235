"""Long rewinds on targets that keep a recurrent state: the text is that of a fresh computation, and
few tokens are decoded again.

Needs the kernels, as test_attach_architectures.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pydflash2
from tests.tools.recurrent_targets import n_layers, write_recurrent_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
SPACING = 256
"""Tokens between two checkpoints in a text, at least."""

PROMPT_END = 16
"""Tokens of a prompt behind its last checkpoint."""

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair_of(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Writes a chat model of an architecture and a drafter for it, once."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def find(architecture: str) -> Pair:
        path, drafter = folder / f"{architecture}.gguf", folder / f"{architecture}-drafter.gguf"
        if not path.exists():
            write_recurrent_target(
                path, architecture, tokenizer_from=tiny_target, chat_template=TEMPLATE
            )
            shape = TinyDrafter(taps=(1, n_layers(architecture)))
            write_tiny_drafter(drafter, shape, target=path)
        return path, drafter

    return find


def tokens_of(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(6, 160, n)]


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2"])
def test_a_chat_that_is_edited(architecture: str, pair_of: Callable[[str], Pair]) -> None:
    """The same answer again, another last question, and another question before it."""

    def ask(*questions: str) -> list[dict[str, str]]:
        answers = ["first", "second"]
        messages = [{"role": "user", "content": questions[0]}]
        for answer, question in zip(answers, questions[1:], strict=False):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": question})
        return messages

    a, b, c = "alphabravo" * 30, "charliedelta" * 25, "echofoxtrot" * 20
    turns = [ask(a), ask(a, b), ask(a, b, c)]
    edits = [ask(a, b, c), ask(a, b, "golf"), ask(a, "hotel" * 40, c), ask(a)]
    path, drafter = pair_of(architecture)
    with (
        pydflash2.load(path, n_ctx=4096, n_threads=1, checkpoint_bytes=0) as plain,
        pydflash2.load(path, drafter, n_ctx=4096, n_threads=1, n_draft=3) as llm,
    ):
        for turn in turns:
            llm.chat(turn, max_tokens=24)
        for i, messages in enumerate(edits):
            plain.session.rewind(0)
            expected = plain.chat(messages, max_tokens=24).tokens
            before, prompt = llm.session.tokens, plain.format_chat(messages)
            got = llm.chat(messages, max_tokens=24)
            assert got.tokens == expected, i
            n_common = next(
                (k for k, (x, y) in enumerate(zip(before, prompt, strict=False)) if x != y),
                len(prompt),
            )
            assert got.stats.n_restored == 1, i
            if n_common == len(prompt):
                assert got.stats.n_prefill == 0
                assert got.stats.n_recomputed < PROMPT_END, i
            assert got.stats.n_recomputed < SPACING + 512, i
            assert got.stats.n_recomputed < n_common / 2, i


def test_the_budget_is_kept_and_well_spent(pair_of: Callable[[str], Pair]) -> None:
    """Few copies: close together near the end, and far apart at the beginning."""
    path, _ = pair_of("qwen35")
    with pydflash2.Target(path, n_ctx=8192, n_threads=1) as target:
        tokens = tokens_of(6000)
        with pydflash2.Session(target) as session:
            session.prefill(tokens[:600])
            stats = session.stats()
            state_bytes = stats.checkpoint_bytes // stats.n_checkpoints
        budget = 6 * state_bytes + state_bytes // 2
        with pydflash2.Session(target, checkpoint_bytes=budget) as session:
            for begin in range(0, len(tokens), 500):
                session.prefill(tokens[begin : begin + 500])
                assert session.stats().checkpoint_bytes <= budget
            assert session.stats().n_checkpoints == 6
            again = []
            for n_tokens in range(5980, 100, -40):
                session.reset_stats()
                session.rewind(n_tokens)
                session.prefill(tokens[n_tokens : n_tokens + 1])
                again.append(session.stats().n_recomputed)
            assert session.stats().n_checkpoints < 6
        # six copies of 6,000 tokens, and the places from the end to the beginning
        assert max(again[: len(again) // 8]) <= 600
        assert max(again) < 3000
        assert sum(again) / len(again) < 6000 / 4


def test_while_generating(pair_of: Callable[[str], Pair]) -> None:
    path, drafter_path = pair_of("qwen35")
    with (
        pydflash2.Target(path, n_ctx=2048, n_threads=1) as target,
        pydflash2.Drafter(drafter_path) as drafter,
        pydflash2.Session(target, drafter, n_draft=1, ignore_end=True) as session,
    ):
        session.prefill(tokens_of(20))
        while session.n_tokens < 900:
            session.step()
        text = session.tokens
        assert 2 <= session.stats().n_checkpoints <= 900 // SPACING
        session.rewind(700)
        while session.n_tokens < 800:
            session.step()
        assert session.tokens[:800] == text[:800]
        assert 0 < session.stats().n_recomputed <= SPACING + 2


@pytest.mark.parametrize("window", [16, 2048])
def test_the_drafter_sees_again_what_is_decoded_again(
    window: int, pair_of: Callable[[str], Pair]
) -> None:
    """It drafts as if nothing had been before, if its window had the rest; the text is the same
    either way."""
    path, drafter_path = pair_of("mamba2")
    tokens = tokens_of(900)
    with (
        pydflash2.Target(path, n_ctx=2048, n_threads=1) as target,
        pydflash2.Drafter(drafter_path) as drafter,
    ):

        def drafted(back_from: int) -> tuple[pydflash2.Draft, tuple[int, ...], int]:
            with pydflash2.Session(
                target, drafter, n_draft=7, window=window, ignore_end=True
            ) as session:
                session.prefill(tokens[:back_from])
                session.rewind(600)
                draft = session.draft(7)
                while session.n_tokens < 640:
                    session.step()
                return draft, session.tokens[:640], session.stats().n_recomputed

        near, text, _ = drafted(601)
        far, same_text, n_recomputed = drafted(900)
        assert 16 < n_recomputed < 600
        assert same_text == text
        assert np.array_equal(near.logits, far.logits)


def test_without_checkpoints_a_long_rewind_is_refused(pair_of: Callable[[str], Pair]) -> None:
    path, _ = pair_of("qwen35")
    with (
        pydflash2.Target(path, n_ctx=1024, n_threads=1) as target,
        pydflash2.Session(target, checkpoint_bytes=0) as session,
    ):
        session.prefill(tokens_of(500))
        session.prefill(tokens_of(100))
        with pytest.raises(pydflash2.RewindError, match="give checkpoint_bytes"):
            session.rewind(300)
        assert session.n_tokens == 600
        assert session.stats().n_checkpoints == 0


def test_attention_alone_needs_none(tiny_target: Path) -> None:
    with pydflash2.Target(tiny_target, n_threads=1) as target, pydflash2.Session(target) as session:
        session.prefill(tokens_of(600))
        session.rewind(100)
        session.step()
        stats = session.stats()
        assert (stats.n_checkpoints, stats.n_restored, stats.n_recomputed) == (0, 0, 0)
