"""Targets that keep a recurrent state: drafting does not change their text, and whatever a session
has been through, its state is that of a fresh computation.

Needs the kernels, as test_attach_architectures.py.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from pydflash2._ffi import check, ffi, library
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.layer_outputs import greedy
from tests.tools.recurrent_targets import ARCHITECTURES, n_layers, write_recurrent_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter

N_VOCAB = 160
N_TOKENS = 48
PROMPTS = [[6 + i * 37 % 150 for i in range(length)] for length in (1, 12, 40)]

SAME_WIDTHS = {"minimax-01": (), "glm5-next": (2, 3, 8, 16)}
"""Numbers of rows that give the bits of one row, where not all do: docs/identity.md."""

FRESH_WIDTH = 48
"""Rows of a fresh computation: products that the kernels leave to ggml are the same up to 64."""

SNAPSHOTS = {"n_rs_seq": 7}
MARKS = {"n_seq_max": 2, "kv_unified": True}

Logits = npt.NDArray[np.float32]

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


@contextlib.contextmanager
def context_of(path: Path, **options: Any) -> Iterator[Any]:
    """A context as a program may create it."""
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    for name, value in options.items():
        setattr(params, name, value)
    context = llama_cpp.llama_init_from_model(model, params)
    assert context is not None
    yield context
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def logits_of(context: Any, tokens: Sequence[int], width: int) -> Logits:
    """A fresh computation, so many rows at a time: [n_tokens, n_vocab]."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(width, 0, 1)
    found = []
    for begin in range(0, len(tokens), width):
        batch.n_tokens = min(width, len(tokens) - begin)
        for i in range(batch.n_tokens):
            batch.token[i], batch.pos[i] = tokens[begin + i], begin + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(context, batch) == 0
        found += [row_of(context, i) for i in range(batch.n_tokens)]
    llama_cpp.llama_batch_free(batch)
    return np.array(found)


def row_of(context: Any, i: int) -> Logits:
    row = llama_cpp.llama_get_logits_ith(context, i)
    return np.ctypeslib.as_array(row, (N_VOCAB,)).copy()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_is_the_targets(
    architecture: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    path = target_of(architecture)
    llama = llama_cpp.Llama(
        str(path),
        n_ctx=256,
        n_threads=1,
        n_threads_batch=1,
        n_gpu_layers=0,
        flash_attn=True,  # as load() has it
        verbose=False,
    )
    expected = [greedy(llama, prompt, N_TOKENS)[0] for prompt in PROMPTS]
    llama.close()
    texts = [prompt + text for prompt, text in zip(PROMPTS, expected, strict=True)]
    drafter = reciting(tmp_path, path, architecture, texts)
    for n_draft, n_threads in ((1, 1), (3, 1), (7, 1), ("auto", 1), (7, 2)):
        n_drafted = n_accepted = 0
        with pydflash2.load(path, drafter, n_ctx=256, n_draft=n_draft, n_threads=n_threads) as llm:
            for prompt, text in list(zip(PROMPTS, expected, strict=True))[2 * (n_threads - 1) :]:
                got = llm.generate(prompt, max_tokens=N_TOKENS)
                assert list(got.tokens) == text, (len(prompt), n_draft, n_threads)
                n_drafted += got.stats.n_drafted
                n_accepted += got.stats.n_accepted
                # what is decoded again stays within a block, whatever is rejected
                assert got.stats.n_replayed <= 8 * got.stats.n_cycles
        assert n_draft == "auto" or 0 < n_accepted < n_drafted, (n_draft, n_threads)


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


class Machine:
    """A session that is put through anything, and what must come of it."""

    def __init__(self, context: Any, fresh: Any, drafter: pydflash2.Drafter, seed: int) -> None:
        self.context, self.fresh, self.drafter = context, fresh, drafter
        self.random = np.random.default_rng(seed)
        self.n_poisoned = self.n_refused = self.n_drafted = self.n_accepted = self.n_failed = 0
        self.target = pydflash2.Target.attach(context, n_batch=512)
        self.open()

    def open(self) -> None:
        self.session = pydflash2.Session(self.target, self.drafter, n_draft=7, ignore_end=True)

    def close(self) -> None:
        self.session.close()
        self.target.close()

    def prefill(self) -> None:
        n = int(self.random.choice([1, 2, 5, 30]))
        if self.session.n_tokens + n < 150:
            self.session.prefill([int(t) for t in self.random.integers(6, N_VOCAB, n)])

    def step(self) -> int:
        """Returns the length before it."""
        if self.session.n_tokens == 0:
            self.session.prefill(PROMPTS[1])
        before = list(self.session.tokens)
        n_replayed = self.session.stats().n_replayed
        n_cycles = self.session.stats().n_cycles
        step = self.session.step(int(self.random.choice([1, 4, 8])))
        self.n_drafted += step.n_drafted
        self.n_accepted += step.n_accepted
        if self.session.stats().n_cycles == n_cycles:
            wanted = logits_of(self.fresh, before, FRESH_WIDTH)[-1]
            assert step.tokens == (int(wanted.argmax()),)
            return len(before)
        wanted = logits_of(self.fresh, [*before, *step.tokens], FRESH_WIDTH)[len(before) - 1 :]
        anchor = self.session.stats().n_replayed - n_replayed
        for i, token in enumerate(step.tokens):
            assert token == int(wanted[i].argmax()), (len(before), i)
            assert np.array_equal(row_of(self.context, anchor + i), wanted[i]), (len(before), i)
        return len(before)

    def rewind(self, n_tokens: int) -> bool:
        before = self.session.tokens
        try:
            self.session.rewind(n_tokens)
        except pydflash2.RewindError:
            self.n_refused += 1
            assert self.session.tokens == before
            return False
        assert self.session.tokens == before[:n_tokens]
        return True

    def rewind_somewhere(self) -> None:
        n = self.session.n_tokens
        least = max(0, n - 12) if self.random.random() < 0.7 else 0
        n_kept = int(self.random.integers(least, n + 1))
        tokens = list(self.session.tokens[:n_kept])
        if not self.rewind(n_kept) and self.random.random() < 0.5:
            assert self.rewind(0)
            self.session.prefill(tokens)

    def step_back(self) -> None:
        """Into the last cycle: always possible, unless the memory goes back by snapshots."""
        n_cycles = self.session.stats().n_cycles
        begin = self.step()
        if self.session.stats().n_cycles == n_cycles:
            return
        is_done = self.rewind(int(self.random.integers(begin, self.session.n_tokens + 1)))
        assert is_done or llama_cpp.llama_n_rs_seq(self.context) > 0

    def fail(self) -> None:
        """A decode that is aborted after so many nodes, or comes through."""
        left = int(self.random.choice([0, 3, 40, 150]))

        def abort(_data: int | None) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        callback = llama_cpp.ggml_abort_callback(abort)
        before = self.session.tokens
        llama_cpp.llama_set_abort_callback(self.context, callback, None)
        try:
            if self.random.random() < 0.5 and self.session.n_tokens < 150:
                self.session.prefill([20, 30, 40, 50])
            elif before:
                self.session.step()
        except pydflash2.PoisonedError:
            self.reopen()
        except pydflash2.BackendError:
            self.n_failed += 1
            assert self.session.tokens == before
        finally:
            llama_cpp.llama_set_abort_callback(self.context, llama_cpp.ggml_abort_callback(0), None)

    def fail_to_pick(self) -> None:
        if self.session.n_tokens == 0:
            return
        before = self.session.tokens
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(0.5))
        raw = ffi.cast("struct llama_sampler *", ctypes.cast(chain, ctypes.c_void_p).value)
        check(library().df2_session_set_sampler(self.session._pointer, raw))
        try:
            self.session.step()
        except pydflash2.PoisonedError:
            self.reopen()
        except pydflash2.InvalidArgumentError:
            self.n_failed += 1
            assert self.session.tokens == before
        check(library().df2_session_set_sampler(self.session._pointer, ffi.NULL))
        llama_cpp.llama_sampler_free(chain)

    def reopen(self) -> None:
        self.n_poisoned += 1
        self.session.close()
        self.open()

    def run(self, n_actions: int) -> None:
        actions = [
            self.step,
            self.step_back,
            self.rewind_somewhere,
            self.prefill,
            self.fail,
            self.fail_to_pick,
        ]
        for _ in range(n_actions):
            if self.session.n_tokens > 200:
                assert self.rewind(0)
            self.random.choice(actions, p=[0.5, 0.1, 0.15, 0.1, 0.1, 0.05])()  # type: ignore[arg-type]


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "truncation": ("llama", {}),
    "marks, hybrid": ("qwen35", MARKS),
    "marks, recurrent": ("mamba2", MARKS),
    "snapshots": ("qwen35", SNAPSHOTS),
    "snapshots, convolutions": ("lfm2", SNAPSHOTS),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_state_is_that_of_a_fresh_computation(
    form: str, target_of: Callable[[str], Path], tiny_target: Path, tmp_path: Path
) -> None:
    architecture, options = FORMS[form]
    path = tiny_target if architecture == "llama" else target_of(architecture)
    with context_of(path, **options) as context, context_of(path) as fresh:
        texts = []
        for prompt in PROMPTS:
            text = list(prompt)
            while len(text) < 80:
                text.append(int(logits_of(fresh, text, FRESH_WIDTH)[-1].argmax()))
            texts.append(text)
        drafter = reciting(tmp_path, path, architecture, texts)
        with pydflash2.Drafter(drafter) as opened:
            machine = Machine(context, fresh, opened, seed=sum(map(ord, form)))
            machine.run(150)
            machine.close()
    assert 0 < machine.n_accepted < machine.n_drafted
    assert machine.n_failed > 0
    assert (machine.n_poisoned > 0) == form.startswith("snapshots")
    assert (machine.n_refused > 0) == (architecture != "llama")


def drafts(session: pydflash2.Session, n_steps: int) -> list[Logits]:
    """What the drafter makes of the hidden states while a text grows, most drafts of which are
    rejected."""
    found = []
    for _ in range(n_steps):
        draft = session.draft(7)
        found += [draft.hidden, draft.logits]
        session.step()
    return found


@pytest.mark.parametrize("architecture", ["qwen35", "mamba2", "lfm2", "glm5-next"])
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
            if architecture != "glm5-next":  # which goes back by snapshots
                session.rewind(len(tokens) - 1)
                found += drafts(session, 1)
                assert session.tokens[: len(tokens)] == tokens
        assert (n_replayed > 0) == (architecture != "glm5-next")
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


def test_a_full_context_ends_the_text(target_of: Callable[[str], Path], tmp_path: Path) -> None:
    """At the same token with drafting, and with tokens to decode again, as without."""
    path = target_of("qwen35")
    with pydflash2.load(path, n_ctx=256, n_threads=1) as plain:
        expected = plain.generate(PROMPTS[1], max_tokens=300)
    assert expected.finish_reason == "context"
    drafter = reciting(tmp_path, path, "qwen35", [list(expected.tokens)])
    with pydflash2.load(path, drafter, n_ctx=256, n_threads=1, n_draft=7) as llm:
        got = llm.generate(PROMPTS[1], max_tokens=300)
    assert got.tokens == expected.tokens
    assert got.finish_reason == "context"
    assert got.stats.n_replayed > 0


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
    with context_of(target_of("qwen35"), **SNAPSHOTS) as context:
        target = pydflash2.Target.attach(context, n_batch=512)
        with pydflash2.Session(target) as session:
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
