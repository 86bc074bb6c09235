"""Pairs of real size and random weights whose drafter is right as often as asked.

For timing drafting where no trained drafter is at hand. The target's layers compute what a real
model's do, but its text is known: the head holds the embeddings, of the token before in a ring of
tokens, so large that what the layers add does not matter. The drafter's layers add nothing, and its
selector knows what follows each token of the ring, for as many of them as it is to get right.

The hybrid targets are as Qwen3.5 0.8B and 2B (gated delta net, every fourth layer attention), the
attention targets as Qwen3 with as many weights. Tensors are as in ``Q4_K_M`` files, drafters Q8_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

from tests.tools.errors import ToolError
from tests.tools.files import cache_folder
from tests.tools.gguf_files import finish
from tests.tools.recurrent_targets import shapes_of_keys
from tests.tools.synthetic import random_matrix
from tests.tools.synthetic_pair import add_tokenizer
from tests.tools.tiny_gguf import Key, write_keys

_FORMAT = 3  # of the files; raised when what is written changes
_MATRICES = GGMLQuantizationType.Q4_K
_NARROW = GGMLQuantizationType.Q8_0  # of matrices too narrow for blocks of 256
_HEAD = GGMLQuantizationType.Q6_K
_DRAFTER = GGMLQuantizationType.Q8_0

N_RING = 30
_LINE_BREAK = 10  # the token that chat templates end with, so that the text follows any prompt
_FIRST = 1000  # the ring's other tokens: behind bytes, before control tokens
_LOUDNESS = 8.0  # deviation of embeddings; a layer adds less than one
_RANK = 64
_N_REDUCED = 16384
_N_DRAFTER_LAYERS = 2

_Array = npt.NDArray[np.generic]
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Size:
    """What hybrid and attention targets of one size share."""

    n_embd: int
    n_ff: int
    n_layer: int
    n_vocab: int


SIZES = {
    "0.8b": Size(1024, 3584, 24, 248320),
    "2b": Size(2048, 6144, 24, 248320),
    "tiny": Size(256, 512, 8, 2048),  # for tests
}
ARCHITECTURES = ("qwen3", "qwen35")


def recited_target(architecture: str, size: str, *, folder: Path | None = None) -> Path:
    """The target, written if the folder (default: the cache) lacks it."""
    if architecture not in ARCHITECTURES or size not in SIZES:
        raise ToolError(
            f"there is no recited target {architecture}:{size}",
            f"one of {', '.join(ARCHITECTURES)} in one of {', '.join(SIZES)}",
        )
    out = (folder or cache_folder()) / f"recited-{_FORMAT}-{architecture}-{size}.gguf"
    if not out.is_file():
        print(f"writing {out.name}", flush=True)
        partial = out.with_suffix(".partial")
        _write_target(partial, architecture, SIZES[size])
        partial.replace(out)
    return out


def recited_drafter(size: str, rate: float, *, folder: Path | None = None) -> Path:
    """A drafter for both targets of a size. rate: share of the ring that it gets right."""
    out = (folder or cache_folder()) / f"recited-{_FORMAT}-drafter-{size}-{rate:g}.gguf"
    if not out.is_file():
        print(f"writing {out.name}", flush=True)
        partial = out.with_suffix(".partial")
        _write_drafter(partial, SIZES[size], rate)
        partial.replace(out)
    return out


def ring() -> list[int]:
    """The text, over and over."""
    others = np.random.default_rng(2).permutation(N_RING - 1)
    return [_LINE_BREAK, *(_FIRST + int(i) for i in others)]


def known(rate: float) -> list[bool]:
    """Whether the drafter knows what follows each token of the ring. Of many arrangements the one
    whose drafts of seven are accepted most nearly as if each token were right by chance."""
    n_known = round(rate * N_RING)
    expected = sum(rate**n for n in range(1, 8))
    generator = np.random.default_rng(3)
    choices = [generator.permutation(N_RING) < n_known for _ in range(2000)]
    best = min(choices, key=lambda right: abs(mean_accepted(list(right), 7) - expected))
    return [bool(right) for right in best]


def mean_accepted(right: list[bool], n_draft: int) -> float:
    """Drafted tokens accepted per cycle on the ring, in the long run."""
    at, n_accepted, n_cycles = 0, 0, 50 * N_RING
    for _ in range(n_cycles):
        n = 0
        while n < n_draft and right[(at + n) % N_RING]:
            n += 1
        n_accepted += n
        at += n + 1
    return n_accepted / n_cycles


def _embeddings(size: Size) -> _Array:
    return _loud(np.random.default_rng(4), size.n_vocab, size.n_embd)


def _loud(random: np.random.Generator, n_out: int, n_in: int) -> _Array:
    return random_matrix(random, _HEAD, n_out, n_in, deviation=_LOUDNESS)


def _head(embeddings: _Array) -> _Array:
    """A token's score is how much the hidden state looks like the token before it in the ring."""
    tokens = ring()
    head: _Array = embeddings.copy()
    head[tokens] = embeddings[[tokens[-1], *tokens[:-1]]]
    return head


def _write_target(path: Path, architecture: str, size: Size) -> None:
    bare = path.with_suffix(".keys")
    finish(_target_writer(bare, architecture, size))
    lengths = {name: shape for name, shape in shapes_of_keys(bare).items() if not _is_rare(name)}
    bare.unlink()
    writer = _target_writer(path, architecture, size)
    embeddings = _embeddings(size)
    random = np.random.default_rng(1)
    for name, shape in lengths.items():
        if name == "token_embd.weight":
            writer.add_tensor(name, embeddings, raw_dtype=_HEAD)
        elif name == "output.weight":
            writer.add_tensor(name, _head(embeddings), raw_dtype=_HEAD)
        else:
            _add_weights(writer, random, name, shape)
    finish(writer)


def _is_rare(name: str) -> bool:
    """Whether llama.cpp would take a tensor that such models do not have."""
    is_bias = name.endswith(".bias") and not name.endswith("ssm_dt.bias")
    return is_bias or name.endswith("scale") or name.startswith("cls.")


def _add_weights(
    writer: GGUFWriter, random: np.random.Generator, name: str, shape: tuple[int, ...]
) -> None:
    if len(shape) == 2 and min(shape) > 8:
        kind = _MATRICES if min(shape) >= 256 else _NARROW
        writer.add_tensor(name, random_matrix(random, kind, *shape), raw_dtype=kind)
    elif "norm" in name:
        writer.add_tensor(name, np.ones(shape, np.float32))
    elif "ssm_a" in name:  # a decay
        writer.add_tensor(name, np.full(shape, -0.5, np.float32))
    else:
        writer.add_tensor(name, random.normal(0, 0.5, shape).astype(np.float32))


def _target_writer(path: Path, architecture: str, size: Size) -> GGUFWriter:
    keys: dict[str, Key] = {
        "context_length": 8192,
        "embedding_length": size.n_embd,
        "feed_forward_length": size.n_ff,
        "block_count": size.n_layer,
        "vocab_size": size.n_vocab,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
    }
    keys |= _HYBRID if architecture == "qwen35" else _ATTENTION
    writer = GGUFWriter(path, architecture)
    write_keys(writer, architecture, keys)
    add_tokenizer(writer, size.n_vocab)
    return writer


_HYBRID: dict[str, Key] = {
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 16,
    "ssm.inner_size": 2048,
}
_ATTENTION: dict[str, Key] = {
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "rope.dimension_count": 128,
}


class _DrafterTensors:
    """Adds tensors to a drafter's file."""

    def __init__(self, writer: GGUFWriter) -> None:
        self._writer = writer
        self._random = np.random.default_rng(6)

    def random(self, name: str, n_out: int, n_in: int) -> None:
        values = random_matrix(self._random, _DRAFTER, n_out, n_in)
        self._writer.add_tensor(f"{name}.weight", values, raw_dtype=_DRAFTER)

    def values(self, name: str, values: _Floats) -> None:
        blocks = quantize(values, _DRAFTER)
        self._writer.add_tensor(f"{name}.weight", blocks, raw_dtype=_DRAFTER)

    def ones(self, name: str, length: int) -> None:
        self._writer.add_tensor(f"{name}.weight", np.ones(length, np.float32))

    def small(self, name: str, *lengths: int) -> None:
        values = 0.5 * self._random.standard_normal(lengths, np.float32)
        self._writer.add_tensor(name, values.astype(np.float32))

    def layer(self, block: str, size: Size) -> None:
        """As wide as the target's, with outputs of zero."""
        n_embd, n_ff = size.n_embd, size.n_ff
        for name, length in (("attn", n_embd), ("ffn", n_embd), ("attn_q", 128), ("attn_k", 128)):
            self.ones(f"{block}.{name}_norm", length)
        self.random(f"{block}.attn_q", 2048, n_embd)
        self.random(f"{block}.attn_k", 512, n_embd)
        self.random(f"{block}.attn_v", 512, n_embd)
        self.values(f"{block}.attn_output", np.zeros((n_embd, 2048), np.float32))
        self.random(f"{block}.ffn_gate", n_ff, n_embd)
        self.random(f"{block}.ffn_up", n_ff, n_embd)
        self.values(f"{block}.ffn_down", np.zeros((n_embd, n_ff), np.float32))
        for part in ("attn", "ffn"):
            self.small(f"{block}.{part}_conv_base", 2, 2, n_embd)
            self.random(f"{block}.{part}_conv_proj", 4 * (n_embd // 16), n_embd)


def _write_drafter(path: Path, size: Size, rate: float) -> None:
    writer = GGUFWriter(path, "dflash")
    write_keys(
        writer,
        "dflash",
        {
            "block_count": _N_DRAFTER_LAYERS,
            "context_length": 8192,
            "embedding_length": size.n_embd,
            "feed_forward_length": size.n_ff,
            "attention.head_count": 16,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.causal": False,
            "rope.freq_base": 1e6,
            "rope.dimension_count": 128,
            "vocab_size": size.n_vocab,
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": _RANK,
            "selector_top_k": N_RING,
            "embedding_scale": 1.0,
            "target_layers": [2, size.n_layer // 2, size.n_layer - 1],
        },
    )
    add_tokenizer(writer, size.n_vocab)
    tensors = _DrafterTensors(writer)
    tensors.random("fc", size.n_embd, 3 * size.n_embd)
    tensors.ones("enc.output_norm", size.n_embd)
    tensors.ones("output_norm", size.n_embd)
    for i in range(_N_DRAFTER_LAYERS):
        tensors.layer(f"blk.{i}", size)
    _add_memory(tensors, size, known(rate))
    n_reduced = min(_N_REDUCED, size.n_vocab // 2)
    others = [token for token in range(n_reduced) if token not in set(ring())]
    writer.add_tensor("d2t", np.array([*ring(), *others[: n_reduced - N_RING]], np.int64))
    finish(writer)


def _add_memory(tensors: _DrafterTensors, size: Size, right: list[bool]) -> None:
    """Head and selector. The hidden state of a drafted position is the mask's embedding, normed."""
    mask = dequantize(_embeddings(size)[-1:], _HEAD)[0]
    unit = mask / np.linalg.norm(mask)
    random = np.random.default_rng(7)
    n_reduced = min(_N_REDUCED, size.n_vocab // 2)
    head = random.normal(0, 0.1, (n_reduced, size.n_embd)) * size.n_embd**-0.5
    head[:N_RING] += unit
    head[N_RING:] -= unit
    tensors.values("output", head.astype(np.float32))
    hidden = np.tile(unit / size.n_embd**0.5, (_RANK, 1))
    tensors.values("selector_hidden", hidden.astype(np.float32))
    codes = random.standard_normal((N_RING, _RANK))
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    predecessors = np.zeros((size.n_vocab, _RANK), np.float32)
    successors = np.zeros((size.n_vocab, _RANK), np.float32)
    tokens = ring()
    for i, token in enumerate(tokens):
        successors[token] = codes[i]
        # a wrong one is the token before
        predecessors[token] = 60 * codes[(i + 1) % N_RING if right[i] else i - 1]
    tensors.values("selector_predecessor", predecessors)
    tensors.values("selector_successor", successors)
