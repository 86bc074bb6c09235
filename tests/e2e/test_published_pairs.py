"""Published pairs in small: drafters in the layouts of their repositories, converted, over targets
of the architectures they are for. Weights are random, so this is about reading and computing them
as they were meant; how many drafts are accepted it does not tell.

Needs the kernels, as test_attach_architectures.py.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from pydflash2.convert import convert

import pydflash2
from tests.e2e.test_recurrent import SNAPSHOTS, context_of
from tests.parity.numpy_drafter import NumpyDrafter, SharedWeights
from tests.tools import recurrent_targets
from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.gguf_files import finish
from tests.tools.layer_outputs import layer_outputs
from tests.tools.published import N_VOCAB, PUBLISHED, Published
from tests.tools.recurrent_targets import write_recurrent_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_targets import write_tiny_target

PROMPT = [6 + i * 37 % 150 for i in range(40)]
N_STREAMS = {"glm5-next": 4}

N_TOKENS = 64
PROMPTS = [[6 + (i * 37 + 11 * n) % 150 for i in range(1 + 3 * n)] for n in range(20)]

TOLERANCE = 1e-4
"""Of a draft in double precision, relative to its largest number."""

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


@dataclass
class Pair:
    """A target and its published drafter, converted."""

    published: Published
    target: Path
    drafter: Path

    def llama(self) -> llama_cpp.Llama:
        return llama_cpp.Llama(
            str(self.target),
            n_ctx=256,
            n_gpu_layers=0,
            n_threads=1,
            n_threads_batch=1,
            flash_attn=True,  # as load() has it
            verbose=False,
        )


@pytest.fixture(scope="module")
def target_of(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the target of an architecture, once."""
    folder = tmp_path_factory.mktemp("targets")

    def find(architecture: str) -> Path:
        path = folder / f"{architecture}.gguf"
        if not path.exists():
            is_recurrent = architecture in recurrent_targets.ARCHITECTURES
            write = write_recurrent_target if is_recurrent else write_tiny_target
            write(path, architecture, tokenizer_from=tiny_target)
        return path

    return find


@pytest.fixture
def pair(request: pytest.FixtureRequest, target_of: Callable[[str], Path], tmp_path: Path) -> Pair:
    published = PUBLISHED[request.param]
    target = target_of(published.target)
    out = tmp_path / "drafter.gguf"
    convert(published.save(tmp_path / request.param), target, out, outtype="f32")
    return Pair(published, target, out)


@pytest.mark.parametrize("pair", PUBLISHED, indirect=True)
def test_the_file_says_what_the_configuration_does(pair: Pair) -> None:
    fields = GGUFReader(pair.drafter).fields
    for name, wanted in {
        "dflash.block_size": pair.published.block_size,
        "dflash.target_layers": list(pair.published.layer_ids),
        **pair.published.keys,
    }.items():
        found = fields[name].contents()
        assert found == pytest.approx(wanted) if isinstance(wanted, float) else found == wanted
    optional = {"dflash2.attention.causal_pattern", "dflash.embedding_scale", "dflash.logit_scale"}
    assert optional & fields.keys() == optional & pair.published.keys.keys()


@contextlib.contextmanager
def session_of(pair: Pair, way: str) -> Iterator[pydflash2.Session]:
    """load: a context of the library's own; attach: one of the program's, without a callback."""
    if way == "load":
        with pydflash2.load(
            pair.target, pair.drafter, n_ctx=256, n_draft=3, n_threads=1, cache_type="f32"
        ) as llm:
            yield llm.session
        return
    is_recurrent = pair.published.target in recurrent_targets.ARCHITECTURES
    options: dict[str, Any] = SNAPSHOTS if is_recurrent else {}
    with (
        context_of(pair.target, **options) as context,
        pydflash2.Target.attach(context, n_batch=512) as target,
        pydflash2.Drafter(pair.drafter) as drafter,
        pydflash2.Session(target, drafter, n_draft=3, cache_type="f32") as session,
    ):
        yield session


@pytest.mark.parametrize("way", ["load", "attach"])
@pytest.mark.parametrize("pair", PUBLISHED, indirect=True)
def test_a_draft_is_that_of_a_drafter_in_numpy(
    pair: Pair, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Given the hidden states that a callback of Python's saw."""
    with caplog.at_level(logging.WARNING, "pydflash2"), session_of(pair, way) as session:
        session.prefill(PROMPT)
        session.step(1)
        for _ in range(3):
            session.step()
        draft = session.draft(pair.published.block_size - 1)
        *context, anchor = session.tokens
    assert not caplog.messages  # a published layout leaves nothing open
    reference = NumpyDrafter(pair.drafter)
    llama = pair.llama()
    n_streams = N_STREAMS.get(pair.published.target, 1)
    outputs = layer_outputs(llama, context, reference.taps, n_streams=n_streams)
    llama.close()
    features = np.concatenate([outputs[tap] for tap in reference.taps], axis=1).astype(np.float64)
    wanted = reference.predict(features, anchor, SharedWeights(pair.target))
    for found, expected in ((draft.hidden, wanted.hidden), (draft.logits, wanted.logits)):
        assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()
    assert wanted.margin > TOLERANCE * np.abs(wanted.logits).max(), "another seed is needed"
    assert draft.tokens.tolist() == wanted.path.tolist()
    if pair.published.config["architectures"] == ["DFlash2DraftModel"]:
        assert draft.candidates.tolist() == wanted.candidates.tolist()
        assert np.abs(draft.scores - wanted.scores).max() < TOLERANCE * np.abs(wanted.scores).max()


def without_our_keys(path: Path, out: Path) -> Path:
    """The file as llama.cpp's converter writes it (tests/unit/test_convert_upstream.py): without
    this library's keys, and without causality, which it leaves out where it is not stated."""
    reader = GGUFReader(path)
    writer = GGUFWriter(out, "dflash")
    for name, entry in reader.fields.items():
        value = entry.contents()
        if name.startswith(("GGUF.", "general.", "dflash2.")):
            continue
        if name == "dflash.attention.causal":
            assert value is False
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, entry.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    finish(writer)
    return out


@pytest.mark.parametrize("pair", PUBLISHED, indirect=True)
def test_llama_cpps_files_draft_the_same(pair: Pair, tmp_path: Path) -> None:
    """But for drafters whose layers differ in causality, which it cannot say."""
    theirs = replace(pair, drafter=without_our_keys(pair.drafter, tmp_path / "theirs.gguf"))
    drafts = []
    for each in (pair, theirs):
        with session_of(each, "load") as session:
            session.prefill(PROMPT)
            session.step(1)
            drafts.append(session.draft(pair.published.block_size - 1))
    is_mixed = "dflash2.attention.causal_pattern" in pair.published.keys
    assert np.array_equal(drafts[0].hidden, drafts[1].hidden) != is_mixed


@pytest.mark.parametrize(
    ("causal", "message"),
    [((True,), "1 entries for 3 layers"), ((True, True, False), "apart from each other")],
)
def test_causality_that_layers_cannot_have_is_refused(
    causal: tuple[bool, ...], message: str, tiny_target: Path, tmp_path: Path
) -> None:
    shape = TinyDrafter(
        n_layer=3,
        windowed=(True, False, True),
        causal=causal,
        keys={"attention.sliding_window": 6},
    )
    path = write_tiny_drafter(tmp_path / "drafter.gguf", shape, target=tiny_target)
    with pytest.raises(pydflash2.Dflash2Error, match=message):
        pydflash2.Drafter(path)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("DFlash2")])
def test_the_text_is_the_targets(
    name: str, target_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """With a drafter that knows half of the text, as random ones are hardly ever right."""
    published = PUBLISHED[name]
    path = target_of(published.target)
    n_generated = n_accepted = 0
    with pydflash2.Target(path, n_ctx=256, n_threads=1) as target:
        for prompt in PROMPTS:
            n_total = len(prompt) + N_TOKENS
            with pydflash2.Session(target, ignore_end=True) as session:
                expected = text_of(session, prompt, n_total)
            bigrams = write_bigram_drafter(
                tmp_path / "bigrams.gguf",
                [expected[: len(prompt) + N_TOKENS // 2]],
                target=path,
                n_vocab=N_VOCAB,
                taps=published.layer_ids,
                block_size=published.block_size,
            )
            with (
                pydflash2.Drafter(bigrams) as drafter,
                pydflash2.Session(target, drafter, ignore_end=True) as session,
            ):
                for n_draft in range(1, published.block_size):
                    session.set_n_draft(n_draft)
                    found = text_of(session, prompt, n_total)
                    assert found == expected, (len(prompt), n_draft)
                n_generated += session.stats().n_generated
                n_accepted += session.stats().n_accepted
    # known are the first half, where the last token of each cycle is the target's own
    assert 0.15 * n_generated < n_accepted < 0.5 * n_generated, n_accepted / n_generated


def text_of(session: pydflash2.Session, prompt: list[int], n_total: int) -> tuple[int, ...]:
    """The prompt and what follows."""
    session.rewind(0)
    session.prefill(prompt)
    while session.n_tokens < n_total:
        session.step(n_total - session.n_tokens)
    return session.tokens
