"""Targets that keep a recurrent state: their bits do not depend on the number of rows, and calls do
what they do for others. Texts: test_matrix.py. What else a session can go through:
test_memory_model.py and test_checkpoints.py.

Needs the kernels, as test_attach_architectures.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import pydflash2
from pydflash2._ffi import check, ffi, library
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.fresh_context import (
    FRESH_WIDTH,
    KEPT,
    MARKS,
    SNAPSHOTS,
    Logits,
    context_of,
    logits_of,
)
from tests.tools.recurrent_targets import ARCHITECTURES, n_layers, write_recurrent_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter

N_VOCAB = 160
PROMPTS = [[6 + i * 37 % 150 for i in range(length)] for length in (1, 12, 40)]

SAME_WIDTHS = {"minimax-01": (), "glm5-next": (2, 3, 8, 16)}
"""Numbers of rows that give the bits of one row, where not all do: docs/identity.md."""

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


@pytest.fixture(scope="module")
def target_of(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the target of an architecture, once."""
    folder = tmp_path_factory.mktemp("recurrent")

    def find(architecture: str) -> Path:
        path = folder / f"{architecture}.gguf"
        if not path.exists():
            write_recurrent_target(path, architecture, tokenizer_from=tiny_target)
        return path

    return find


def taps(architecture: str) -> tuple[int, ...]:
    """An early layer, a middle one, and the last."""
    n_layer = 4 if architecture == "llama" else n_layers(architecture)
    return (1, n_layer // 2 + 1, n_layer)


def reciting(folder: Path, target: Path, architecture: str, texts: list[list[int]]) -> Path:
    """A drafter that is right often and wrong often: it knows half of each text."""
    return write_bigram_drafter(
        folder / f"{architecture}-bigrams.gguf",
        [text[: len(text) // 2] for text in texts],
        target=target,
        n_vocab=N_VOCAB,
        taps=taps(architecture),
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_do_not_depend_on_the_number_of_rows(
    architecture: str, target_of: Callable[[str], Path]
) -> None:
    tokens = [6 + i * 37 % 150 for i in range(48)]
    widths = SAME_WIDTHS.get(architecture, (2, 3, 8, 16, 25, 48))
    with context_of(target_of(architecture)) as context:
        alone = logits_of(context, tokens, 1)
        for width in widths:
            assert np.array_equal(logits_of(context, tokens, width), alone), width


def drafts(session: pydflash2.Session, n_steps: int) -> list[Logits]:
    """What the drafter makes of the hidden states while a text grows, most drafts of which are
    rejected."""
    found = []
    for _ in range(n_steps):
        draft = session.draft(7)
        found += [draft.hidden, draft.logits]
        session.step()
    return found


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2", "lfm2", "glm5-next", "kimi-k3"])
def test_hidden_states_of_tokens_decoded_again_are_taken_once(
    architecture: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """The drafter sees what it would see of a target that decodes every token once."""
    path = target_of(architecture)
    shape = TinyDrafter(taps=taps(architecture))
    random = write_tiny_drafter(tmp_path / "random.gguf", shape, target=path)
    with (
        pydflash2.Drafter(random) as drafter,
        pydflash2.Target(path, n_ctx=256, n_threads=1) as target,
    ):
        with pydflash2.Session(target, drafter, n_draft=7, ignore_end=True) as session:
            session.prefill(PROMPTS[1])
            session.step(1)
            found = drafts(session, 12)
            tokens = session.tokens
            n_replayed = session.stats().n_replayed
            session.rewind(len(tokens) - 1)
            found += drafts(session, 1)
            assert session.tokens[: len(tokens)] == tokens
        assert (n_replayed > 0) == (architecture in ("mamba2", "lfm2"))  # the others keep inputs
        # every hidden state comes from a decode of one token, or of the prompt
        with pydflash2.Session(target, drafter, n_draft=0, ignore_end=True) as session:
            session.prefill(PROMPTS[1])
            session.step(1)
            wanted = drafts(session, len(tokens) - session.n_tokens)
            assert session.tokens == tokens
        n_same = sum(any(np.array_equal(a, b) for b in wanted) for a in found)
        assert n_same == len(found)


def test_calls_share_a_sequence(target_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Going on where the last call ended decodes only what is new; other prompts are decoded from
    the start, or from where the memory can go back to."""
    path = target_of("qwen35")
    first = PROMPTS[1]
    with pydflash2.load(path, n_ctx=256, n_threads=1) as plain:

        def text_after(prompt: list[int]) -> list[int]:
            plain.session.rewind(0)
            return list(plain.generate(prompt, max_tokens=24).tokens)

        texts = [text_after(first)]
        prompts = [
            first,
            first + texts[0] + [9, 70],
            first + texts[0][:5] + [80],
            first,
            first[:6],
        ]
        texts = [text_after(prompt) for prompt in prompts]
    recited = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    drafter = reciting(tmp_path, path, "qwen35", recited)
    with pydflash2.load(path, drafter, n_ctx=256, n_draft=7, n_threads=1) as llm:
        n_prefilled = []
        for prompt, text in zip(prompts, texts, strict=True):
            got = llm.generate(prompt, max_tokens=24)
            assert list(got.tokens) == text
            n_prefilled.append(got.stats.n_prefill)
        assert n_prefilled[1] <= 3 + 8  # and what was rejected last
        assert n_prefilled[2] == len(prompts[2])
        # a stop string in the middle of a block, and the tokens after it are gone
        got = llm.generate(first, max_tokens=24)
        stop = llm.detokenize(texts[0][6:8])
        stopped = llm.generate(first, max_tokens=24, stop=[stop] if stop else None)
        assert got.text.startswith(stopped.text)


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2"])
def test_a_full_context_ends_the_text(
    architecture: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """At the same token with drafting, and with tokens to decode again, as without."""
    path = target_of(architecture)
    with pydflash2.load(path, n_ctx=256, n_threads=1) as plain:
        expected = plain.generate(PROMPTS[1], max_tokens=300)
    assert expected.finish_reason == "context"
    drafter = reciting(tmp_path, path, architecture, [list(expected.tokens)])
    with pydflash2.load(path, drafter, n_ctx=256, n_threads=1, n_draft=7) as llm:
        got = llm.generate(PROMPTS[1], max_tokens=300)
    assert got.tokens == expected.tokens
    assert got.finish_reason == "context"
    assert (got.stats.n_replayed > 0) == (architecture == "mamba2")


def states_of(context: Any) -> bytes:
    """What is recurrent of sequence 0, and nothing else."""
    flags = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = llama_cpp.llama_state_seq_get_size_ext(context, 0, flags)
    data = (ctypes.c_uint8 * size)()
    got = llama_cpp.llama_state_seq_get_data_ext(context, data, size, 0, flags)
    assert got == size > 0
    return bytes(data)


@pytest.mark.parametrize("architecture", ["qwen35", "kimi-k3", "bailingmoe3"])
def test_what_a_session_leaves_is_complete(
    architecture: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of states whose inputs were kept: bytes as of a decode without a session, for all the tokens
    that llama.cpp can still drop."""
    path = target_of(architecture)
    with context_of(path, **KEPT) as context, context_of(path, **KEPT) as fresh:
        memory = llama_cpp.llama_get_memory(context)
        target = pydflash2.Target.attach(context, n_batch=512)
        drafter = pydflash2.Drafter(reciting(tmp_path, path, architecture, [PROMPTS[2] * 4]))
        n_dropped = 0
        for n_steps in range(7):
            with pydflash2.Session(target, drafter, n_draft=5, ignore_end=True) as session:
                session.prefill(PROMPTS[1])
                n_accepted = [session.step().n_accepted for _ in range(n_steps)]
                tokens = session.tokens[:-1] if n_steps > 0 else session.tokens
            logits_of(fresh, tokens, FRESH_WIDTH)
            assert states_of(context) == states_of(fresh), n_steps
            if n_steps == 0 or n_accepted[-1] == 5:
                n_dropped += 1
                assert llama_cpp.llama_memory_seq_rm(memory, 0, len(tokens) - 3, -1)
                logits_of(fresh, tokens[:-3], FRESH_WIDTH)
                assert states_of(context) == states_of(fresh), n_steps
        assert n_dropped > 0
        drafter.close()
        target.close()


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2", "deepseek4"])
def test_the_smallest_contexts_and_batches(
    architecture: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    path = target_of(architecture)
    with pydflash2.load(path, n_ctx=256, n_threads=1) as plain:
        expected = plain.generate(PROMPTS[1], max_tokens=12).tokens
    for options in ({"n_ctx": 256, "n_batch": 1}, {"n_ctx": 1}):
        with pydflash2.load(path, n_threads=1, **options) as llm:
            assert llm.generate(PROMPTS[1], max_tokens=12).tokens == expected


def test_a_sampler_that_fails_is_named_where_the_memory_is_lost(
    target_of: Callable[[str], Path],
) -> None:
    with context_of(target_of("lfm2"), **SNAPSHOTS) as context:
        target = pydflash2.Target.attach(context, n_batch=512)
        with pydflash2.Session(target, checkpoint_bytes=0) as session:
            session.prefill(PROMPTS[1])
            session.step()
            chain = llama_cpp.llama_sampler_chain_init(
                llama_cpp.llama_sampler_chain_default_params()
            )
            raw = ffi.cast("struct llama_sampler *", ctypes.cast(chain, ctypes.c_void_p).value)
            check(library().df2_session_set_sampler(session._pointer, raw))
            with pytest.raises(pydflash2.PoisonedError, match="selected no token"):
                session.step()
        llama_cpp.llama_sampler_free(chain)
        target.close()


def test_contexts_that_cannot_go_back_are_refused(target_of: Callable[[str], Path]) -> None:
    """The message says how to create one that can; the context stays as usable as before."""
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("qwen35", {}, "n_seq_max = 2 and kv_unified = true"),
        ("qwen35", {"n_seq_max": 2}, "n_seq_max = 2 and kv_unified = true"),
        ("qwen35", {"n_rs_seq": 7, "n_ubatch": 8}, "an n_ubatch above 8"),
        ("deepseek4", MARKS, "n_rs_seq = 7"),
    ]
    for architecture, options, message in refused:
        path = target_of(architecture)
        with context_of(path, **options) as context:
            target = pydflash2.Target.attach(context, n_batch=512)
            with pytest.raises(pydflash2.UnsupportedError, match=message):
                pydflash2.Session(target)
            target.close()
            if "n_ubatch" not in options:  # llama.cpp itself ends the process
                assert logits_of(context, [7, 8, 9], 2).shape == (3, N_VOCAB)


def test_an_attached_context_is_left_with_one_sequence(
    target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    path = target_of("mamba2")
    with context_of(path, **MARKS) as context:
        drafter = pydflash2.Drafter(reciting(tmp_path, path, "mamba2", [PROMPTS[2] * 4]))
        target = pydflash2.Target.attach(context, n_batch=512)
        with pydflash2.Session(target, drafter, n_draft=7) as session:
            session.prefill(PROMPTS[1])
            for _ in range(4):
                session.step()
            assert llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(context), 1) >= 0
        assert llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(context), 1) == -1
        assert llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(context), 0) >= 0
        target.close()
        drafter.close()
