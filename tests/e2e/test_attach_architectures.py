"""Drafting for models of many architectures in a context that llama-cpp-python has made, without a
callback: the text stays the model's, and the drafter sees the hidden states it would see with one.

Needs the kernels, and with them before the process loads its first model, as in test_kernels.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader

import pydflash2
from tests.parity.numpy_drafter import NumpyDrafter, NumpyTarget
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.layer_outputs import greedy, layer_outputs, target_with_callback
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_targets import ARCHITECTURES, OF_STREAMS, n_layers, write_tiny_target

N_TOKENS = 32
PROMPTS = [[6 + i * 37 % 150 for i in range(length)] for length in (1, 12, 40)]

# Prompts are longer than the batches, and a whole draft does not fit one micro-batch.
CONTEXTS: dict[str, dict[str, Any]] = {
    "default": {},
    "batches": {"flash_attn": True, "n_batch": 16, "n_ubatch": 5},
}

TOLERANCE = 1e-4
"""Of a draft in double precision, relative to its largest number."""

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


def taps(architecture: str) -> tuple[int, ...]:
    """An early layer, a middle one, and the last, which computes only the rows that ask for
    logits."""
    n_layer = n_layers(architecture)
    return (1, n_layer // 2 + 1, n_layer)


@dataclass
class Pair:
    """A target of an architecture and drafters for it."""

    architecture: str
    target: Path
    folder: Path

    def open(self, context: str) -> llama_cpp.Llama:
        return llama_cpp.Llama(
            model_path=str(self.target),
            n_ctx=256,
            n_gpu_layers=0,
            n_threads=2,
            n_threads_batch=2,
            verbose=False,
            **CONTEXTS[context],
        )

    def reciting(self, texts: list[list[int]]) -> Path:
        """A drafter that is right often and wrong often: it knows half of each text."""
        return write_bigram_drafter(
            self.folder / "bigrams.gguf",
            [text[: len(text) // 2] for text in texts],
            target=self.target,
            n_vocab=160,
            taps=taps(self.architecture),
        )

    def looking(self, *extras: str) -> Path:
        """A random drafter, all of whose numbers depend on the hidden states."""
        shape = TinyDrafter(taps=taps(self.architecture), extras=frozenset(extras))
        return write_tiny_drafter(self.folder / "random.gguf", shape, target=self.target)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(
    request: pytest.FixtureRequest, tiny_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    architecture = str(request.param)
    folder = tmp_path_factory.mktemp(architecture)
    path = write_tiny_target(folder / "target.gguf", architecture, tokenizer_from=tiny_target)
    return Pair(architecture, path, folder)


@pytest.fixture(params=CONTEXTS)
def llama(request: pytest.FixtureRequest, pair: Pair) -> Iterator[llama_cpp.Llama]:
    opened = pair.open(str(request.param))
    yield opened
    opened.close()


def test_the_text_is_the_models(pair: Pair, llama: llama_cpp.Llama) -> None:
    expected = [greedy(llama, prompt, N_TOKENS)[0] for prompt in PROMPTS]
    assert all(len(text) == N_TOKENS for text in expected)
    drafter = pair.reciting([p + text for p, text in zip(PROMPTS, expected, strict=True)])
    for n_draft in (1, 3, 7, "auto"):
        n_drafted = n_accepted = 0
        with pydflash2.attach(llama, drafter, n_draft=n_draft) as llm:  # type: ignore[arg-type]
            for prompt, text in zip(PROMPTS, expected, strict=True):
                got = llm.generate(prompt, max_tokens=N_TOKENS)
                assert list(got.tokens) == text, (len(prompt), n_draft)
                n_drafted += got.stats.n_drafted
                n_accepted += got.stats.n_accepted
        assert n_draft == "auto" or 0 < n_accepted < n_drafted, n_draft
    assert greedy(llama, PROMPTS[-1], N_TOKENS)[0] == expected[-1]  # and the model is as before


def drafts(
    session: pydflash2.Session, prompt: list[int] = PROMPTS[-1]
) -> list[npt.NDArray[np.float32]]:
    """What the drafter makes of the hidden states, after a prompt and while the text grows."""
    found = []
    session.rewind(0)
    session.prefill(prompt)
    session.step(1)
    for _ in range(4):
        draft = session.draft(7)
        found += [draft.hidden, draft.logits]
        session.step()
    return found


def test_hidden_states_are_those_a_callback_sees(pair: Pair, llama: llama_cpp.Llama) -> None:
    path = pair.looking()
    with (
        target_with_callback(llama) as target,
        pydflash2.Drafter(path) as drafter,
        pydflash2.Session(target, drafter, n_draft=7) as session,
    ):
        expected = drafts(session)
    with pydflash2.attach(llama, path, n_draft=7) as llm:
        for found, wanted in zip(drafts(llm.session), expected, strict=True):
            assert np.array_equal(found, wanted)


def test_hidden_states_are_the_layers_outputs(
    pair: Pair, llama: llama_cpp.Llama, tiny_target: Path
) -> None:
    """Against a drafter in NumPy, given what a callback of Python's saw."""
    path = pair.looking("token_embd", "output")
    numpy_drafter = NumpyDrafter(path)
    unused = NumpyTarget(tiny_target)  # the drafter has embeddings and a head of its own
    with pydflash2.attach(llama, path, n_draft=7, cache_type="f32") as llm:
        session = llm.session
        session.prefill(PROMPTS[-1])
        session.step(1)
        for _ in range(3):
            session.step()
        draft = session.draft(7)
        *context, anchor = session.tokens
    outputs = layer_outputs(llama, context, numpy_drafter.taps)
    features = np.concatenate([outputs[tap] for tap in numpy_drafter.taps], axis=1)
    wanted = numpy_drafter.predict(features.astype(np.float64), anchor, unused)
    error = np.abs(draft.hidden - wanted.hidden).max() / np.abs(wanted.hidden).max()
    assert error < TOLERANCE
    features[-1] = features[-2]  # one token's
    wrong = numpy_drafter.predict(features.astype(np.float64), anchor, unused)
    error = np.abs(draft.hidden - wrong.hidden).max() / np.abs(wanted.hidden).max()
    assert error > 100 * TOLERANCE


@pytest.mark.parametrize("pair", ["qwen2", "qwen3"], indirect=True)
def test_drafts_are_made_with_the_head_and_its_bias(pair: Pair) -> None:
    weights = {tensor.name: tensor.data for tensor in GGUFReader(pair.target).tensors}
    with pydflash2.load(pair.target, pair.looking(), n_ctx=256, n_draft=7) as llm:
        llm.session.prefill(PROMPTS[1])
        llm.session.step(1)
        draft = llm.session.draft(7)
    bias = weights.get("output.bias", np.zeros(160, np.float32))
    assert bias.any() == (pair.architecture == "qwen2")
    wanted = draft.hidden[1:] @ weights["output.weight"].T + bias
    assert np.abs(draft.logits - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("pair", ["gemma4", "phi3"], indirect=True)
def test_calls_share_a_sequence(pair: Pair, llama: llama_cpp.Llama) -> None:
    """A prompt that goes on where the last call ended, one that shares a beginning, and a rewind
    into a draft."""
    first = PROMPTS[1]
    texts = [greedy(llama, first, N_TOKENS)[0]]
    second = first + texts[0][:20] + [9, 70]
    third = first + texts[0][:9] + [80]
    texts += [greedy(llama, prompt, N_TOKENS)[0] for prompt in (second, third)]
    path = pair.reciting([first + texts[0], second + texts[1], third + texts[2]])
    with pydflash2.attach(llama, path, n_draft=7) as llm:
        for prompt, text in zip((first, second, third), texts, strict=True):
            got = llm.generate(prompt, max_tokens=N_TOKENS)
            assert list(got.tokens) == text
            assert (got.stats.n_prefill == len(prompt)) == (prompt is first)
        for n_kept in (8, 5, 1):
            llm.session.rewind(len(third) + n_kept)
            while llm.session.n_tokens < len(third) + len(texts[2]):
                llm.session.step(len(third) + len(texts[2]) - llm.session.n_tokens)
            assert list(llm.session.tokens) == third + texts[2], n_kept


@pytest.mark.parametrize("pair", ["gemma4", "qwen2"], indirect=True)
def test_contexts_on_several_threads_do_not_meet(pair: Pair) -> None:
    path = pair.looking()
    prompts = [prompt[::step] for prompt in PROMPTS[1:] for step in (1, -1)]
    expected = []
    with contextlib.ExitStack() as undo:
        sessions = []
        for prompt in prompts:
            llama = pair.open("batches")
            undo.callback(llama.close)
            llm = undo.enter_context(pydflash2.attach(llama, path, n_draft=7))
            sessions.append(llm.session)
            expected.append(drafts(llm.session, prompt))
        with ThreadPoolExecutor(len(prompts)) as pool:
            for _ in range(3):
                for found, wanted in zip(
                    pool.map(drafts, sessions, prompts), expected, strict=True
                ):
                    assert all(map(np.array_equal, found, wanted))


WITHOUT_KERNELS = """
import sys
import llama_cpp
import pydflash2

llama = llama_cpp.Llama(sys.argv[1], n_ctx=128, n_gpu_layers=0, verbose=False)
try:
    pydflash2.attach(llama, sys.argv[2])
except pydflash2.UnsupportedError as error:
    print(error)
print(len(list(zip(llama.generate([7, 23, 99]), range(3), strict=False))))
"""


def test_without_kernels_it_is_an_error(pair: Pair) -> None:
    """llama.cpp's layer inputs are then the only way, and it would abort the process here. The
    model is as usable as before."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERNELS, str(pair.target), str(pair.looking())],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "DF2_KERNELS": "off"},
        cwd=Path(sys.executable).parent,  # not the source tree: -c puts this folder into sys.path
    )
    assert done.returncode == 0, done.stderr
    message, n_generated = done.stdout.splitlines()
    assert "df2_taps_eval" in message
    assert n_generated == "3"


@pytest.mark.parametrize("pair", [OF_STREAMS], indirect=True)
@pytest.mark.parametrize("is_attached", [True, False], ids=["attach", "load"])
def test_several_hidden_states_per_token_are_refused(pair: Pair, is_attached: bool) -> None:
    """Which of the streams a drafter would want is not known, and their number must not be taken
    for the number of tokens."""
    if not is_attached:
        with pytest.raises(pydflash2.UnsupportedError, match="hy_v4"):
            pydflash2.load(pair.target, pair.looking(), n_ctx=256)
        return
    llama = pair.open("default")
    expected = greedy(llama, PROMPTS[0], 4)
    with pytest.raises(pydflash2.UnsupportedError, match="hy_v4"):
        pydflash2.attach(llama, pair.looking())
    assert greedy(llama, PROMPTS[0], 4) == expected
    llama.close()
