"""Drafters of every shape the file format allows, against NumPy.

The goldens cover what the reference implementation can run; the options that only the file format
has are checked here against a second implementation, which the goldens check in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from tests.parity.numpy_drafter import NumpyDrafter, NumpyTarget, Prediction
from tests.tools.convert_support import read_safetensors
from tests.tools.exact_target import open_exact
from tests.tools.tiny_drafters import Key, TinyDrafter, write_tiny_drafter

GOLDENS = ("tiny-plain", "tiny-window", "tiny-softcap", "tiny-v1")
TOLERANCE = 1e-4
# ggml reads gelu off a table of half-precision numbers: too coarse to tell tanh from erf
GELU_TOLERANCE = 2e-3
# of a target that attends in half precision
COARSE_TOLERANCE = 3e-2

PLAIN = TinyDrafter()
YARN: dict[str, Key] = {
    "rope.freq_base": 1000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 256,
}
VARIANTS = {
    "plain": PLAIN,
    "causal": replace(PLAIN, keys={"attention.causal": True}),
    # narrower than the block, so that both of its edges count
    "window-pattern": replace(
        PLAIN,
        n_layer=3,
        windowed=(True, False, True),
        keys={"attention.sliding_window": 5},
    ),
    "causal-window": replace(
        PLAIN,
        windowed=(True, True),
        keys={"attention.sliding_window": 6, "attention.causal": True},
    ),
    "causal-in-windows": replace(
        PLAIN,
        n_layer=3,
        windowed=(True, False, True),
        causal=(True, False, True),
        keys={"attention.sliding_window": 6},
    ),
    "sinks": replace(
        PLAIN,
        n_head_kv=1,
        extras=frozenset({"sinks"}),
        keys={"attention.value_scale": 0.6, "attention.scale": 0.4},
    ),
    "biases": replace(PLAIN, extras=frozenset({"biases"}), keys={"attention.value_scale": 0.6}),
    "post-norms": replace(PLAIN, extras=frozenset({"post_norms", "layer_scale"})),
    "scales": replace(
        PLAIN,
        block_size=16,
        keys={"embedding_scale": 3.0, "logit_scale": 0.5, "final_logit_softcapping": 2.5},
    ),
    "own-embeddings": replace(PLAIN, n_embd=48, extras=frozenset({"token_embd"})),
    "own-head": replace(
        PLAIN,
        block_size=13,
        n_vocab_draft=70,
        extras=frozenset({"token_embd", "output", "d2t"}),
        keys={"logit_scale": 0.7},
    ),
    "reduced-head": replace(
        PLAIN,
        seed=2,
        top_k=6,
        n_vocab_draft=50,
        extras=frozenset({"output", "d2t"}),
    ),
    "rope-partial": replace(
        PLAIN,
        seed=2,
        keys={"rope.dimension_count": 8, "rope.freq_base": 500.0},
    ),
    "rope-linear": replace(
        PLAIN,
        extras=frozenset({"rope_freqs"}),
        keys={"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    "rope-none": replace(PLAIN, keys={"rope.scaling.type": "none", "rope.scaling.factor": 3.0}),
    "rope-yarn": replace(PLAIN, head_dim=32, n_head_kv=4, keys=YARN),
    "rope-yarn-tuned": replace(
        PLAIN,
        head_dim=32,
        keys=YARN
        | {
            "rope.scaling.yarn_beta_fast": 8.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_ext_factor": 0.5,
            "rope.scaling.attn_factor": 0.8,
        },
    ),
    "rope-yarn-magnitude": replace(
        PLAIN, head_dim=32, keys=YARN | {"rope.scaling.yarn_attn_factor": 1.4}
    ),
    "gelu": replace(
        PLAIN,
        seed=2,
        kernel_size=4,
        group_size=64,
        keys={"hidden_activation": "gelu_pytorch_tanh"},
    ),
    "taps-out-of-order": replace(PLAIN, taps=(3, 1, 2), kernel_size=3, group_size=1, rank=5),
    "version-1": replace(
        PLAIN,
        version=1,
        n_layer=3,
        windowed=(False, True, False),
        extras=frozenset(
            {"sinks", "biases", "post_norms", "layer_scale", "rope_freqs", "output", "d2t"}
        ),
        n_vocab_draft=90,
        keys=YARN | {"attention.sliding_window": 4, "embedding_scale": 2.0, "logit_scale": 0.5},
    ),
}


class Pair:
    """The target with each drafter in turn, natively and in NumPy."""

    def __init__(self, llama: llama_cpp.Llama, path: Path, folder: Path) -> None:
        self._llama = llama
        self._path = path
        self._folder = folder
        self.target = NumpyTarget(path)
        n_vocab = len(self.target.head)
        self._prompt = np.random.default_rng(40).integers(3, n_vocab, 40).tolist()
        self._layer_inputs, logits = self.target.run(self._prompt)
        self._anchor = int(np.argmax(logits[-1]))
        self._drafts: dict[tuple[str, bool], pydflash2.Draft] = {}

    def write(self, shape: TinyDrafter) -> Path:
        return write_tiny_drafter(self._folder / "drafter.gguf", shape, target=self._path)

    def draft_with(self, llm: pydflash2.Llama) -> pydflash2.Draft:
        """A whole block after the prompt."""
        assert llm.drafter is not None
        llm.session.prefill(self._prompt)
        llm.session.step(1)
        assert llm.session.tokens[-1] == self._anchor
        return llm.session.draft(llm.drafter.info.block_size - 1)

    def draft(self, name: str, *, kernels: bool = True) -> pydflash2.Draft:
        """The library's draft, remembered: several tests look at it. Without kernels the drafter's
        operations are ggml's nodes."""
        if (name, kernels) not in self._drafts:
            drafter = self.write(VARIANTS[name])
            with pydflash2.attach(self._llama, drafter, cache_type="f32", kernels=kernels) as llm:
                self._drafts[name, kernels] = self.draft_with(llm)
        return self._drafts[name, kernels]

    def predict(self, shape: TinyDrafter) -> Prediction:
        drafter = NumpyDrafter(self.write(shape))
        features = drafter.features(self._layer_inputs)
        return drafter.predict(features, self._anchor, self.target)


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    llama = open_exact(tiny_target, n_ctx=256)
    yield Pair(llama, tiny_target, tmp_path_factory.mktemp("variants"))
    llama.close()


def relative_error(values: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    difference = np.abs(np.asarray(values, np.float64) - np.asarray(expected, np.float64))
    return float(difference.max() / np.abs(expected).max())


@pytest.mark.parametrize("name", GOLDENS)
def test_numpy_agrees_with_the_reference(
    name: str, root: Path, tiny_target: Path, tiny_drafters: dict[str, Path]
) -> None:
    golden = read_safetensors(root / "tests" / "data" / "fixtures" / name / "golden.safetensors")
    target = NumpyTarget(tiny_target)
    drafter = NumpyDrafter(tiny_drafters[name])
    layer_inputs, logits = target.run(golden["prompt_ids"].tolist())
    features = drafter.features(layer_inputs)
    assert relative_error(features, golden["target_features"]) < TOLERANCE
    assert relative_error(logits, golden["target_logits"]) < TOLERANCE
    prediction = drafter.predict(features, int(golden["block_ids"][0]), target)
    assert relative_error(prediction.hidden, golden["draft_hidden"]) < TOLERANCE
    assert relative_error(prediction.logits, golden["draft_logits"]) < TOLERANCE
    assert prediction.path.tolist() == golden["draft_path"].tolist()
    if "candidates" in golden:
        assert np.array_equal(np.sort(prediction.candidates, axis=1), golden["candidates"])


@pytest.mark.parametrize("kernels", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, pair: Pair, kernels: bool) -> None:
    tolerance = GELU_TOLERANCE if name == "gelu" else TOLERANCE
    draft, expected = pair.draft(name, kernels=kernels), pair.predict(VARIANTS[name])
    assert relative_error(draft.hidden, expected.hidden) < tolerance
    assert relative_error(draft.logits, expected.logits) < tolerance
    near_tie = tolerance * np.abs(expected.logits).max()
    assert expected.margin > near_tie, "rounding would decide: give this variant another seed"
    assert draft.candidates.tolist() == expected.candidates.tolist()
    assert draft.tokens.tolist() == expected.path.tolist()
    assert relative_error(draft.scores, expected.scores) < tolerance
    # not from the expected scores: softmax turns their absolute error into a relative one
    weights = np.exp(draft.scores - draft.scores.max(axis=1, keepdims=True))
    assert np.allclose(draft.q, weights / weights.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)
    chosen = draft.candidates == draft.tokens[:, None]
    assert draft.tokens_q.tolist() == draft.q[chosen].tolist()


def test_last_layer_tap(pair: Pair, tiny_target: Path) -> None:
    """A context of another owner cannot show the last layer's output, so the library opens its own,
    which rounds keys and values to half precision."""
    shape = replace(PLAIN, taps=(4, 2))
    with pydflash2.load(tiny_target, pair.write(shape), n_ctx=256, cache_type="f32") as llm:
        draft = pair.draft_with(llm)
    assert relative_error(draft.logits, pair.predict(shape).logits) < COARSE_TOLERANCE
    early = pair.predict(replace(shape, taps=(3, 2)))
    assert relative_error(draft.logits, early.logits) > 10 * COARSE_TOLERANCE


WITHOUT_EFFECT = {
    ("rope-linear", "rope.scaling.type"),  # the default
    ("rope-none", "rope.scaling.factor"),  # ignored, which is what the variant is for
}


def without_one_option() -> Iterator[tuple[str, str, TinyDrafter]]:
    for name, shape in VARIANTS.items():
        for key in shape.keys:
            if (name, key) in WITHOUT_EFFECT:
                continue
            fewer = {other: value for other, value in shape.keys.items() if other != key}
            yield name, f"without {key}", replace(shape, keys=fewer)
        # a head and its map come together
        for extra in sorted(shape.extras - {"output", "d2t"}):
            if extra == "token_embd" and shape.n_embd != PLAIN.n_embd:
                continue
            yield name, f"without {extra}", replace(shape, extras=shape.extras - {extra})


MISTAKES = [
    *without_one_option(),
    ("plain", "taps swapped", replace(PLAIN, taps=(3, 1))),
    ("plain", "taps one layer early", replace(PLAIN, taps=(0, 2))),
    ("plain", "causal", VARIANTS["causal"]),
    (
        "causal-in-windows",
        "causal nowhere",
        replace(VARIANTS["causal-in-windows"], causal=()),
    ),
    (
        "causal-in-windows",
        "causal everywhere",
        replace(VARIANTS["causal-in-windows"], causal=(True, True, True)),
    ),
    (
        "window-pattern",
        "pattern inverted",
        replace(VARIANTS["window-pattern"], windowed=(False, True, False)),
    ),
    (
        "window-pattern",
        "window one wider",
        replace(VARIANTS["window-pattern"], keys={"attention.sliding_window": 6}),
    ),
]


@pytest.mark.parametrize(
    ("name", "mistake"),
    [pytest.param(name, shape, id=f"{name}: {what}") for name, what, shape in MISTAKES],
)
def test_a_mistake_shows(name: str, mistake: TinyDrafter, pair: Pair) -> None:
    """An option that changed nothing would be one that test_variant cannot check."""
    draft, wrong = pair.draft(name), pair.predict(mistake)
    tolerance = GELU_TOLERANCE if name == "gelu" else TOLERANCE
    assert relative_error(draft.logits, wrong.logits) > 10 * tolerance
