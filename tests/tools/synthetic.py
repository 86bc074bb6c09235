"""Models of real size and random weights, for measuring speed where no real model is at hand.

The weights are random bytes in the type's own layout, with scales that give every matrix the
standard deviation 1/sqrt(inputs): activations stay in a normal range. Their text means nothing.
Nothing has to be quantised, so a model of a billion weights is written in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize

from tests.tools.errors import ToolError
from tests.tools.files import cache_folder
from tests.tools.gguf_files import finish
from tests.tools.quantise import FILE_TYPES, write_requantised

_FORMAT = 1  # of the files; raised when what is written changes
_WITH_HEAD_NORMS = ("qwen3", "qwen3moe", "dflash")
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture's experts per layer, those used per token, and their inner size."""

    n: int
    n_used: int
    n_ff: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What llama.cpp has to know about a model."""

    architecture: str
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    experts: Experts | None = field(default=None)


SHAPES = {
    # as Llama 3.2 1B, with a smaller vocabulary: 1.0 billion weights in matrices
    "1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 32000),
    # as Qwen3 mixtures, in small: 0.9 billion weights, of which 0.17 take part in a token
    "moe": Shape("qwen3moe", 1024, 2048, 8, 16, 4, 64, 32000, Experts(64, 8, 512)),
    # small enough for tests
    "tiny": Shape("llama", 256, 512, 2, 4, 2, 64, 512),
    "tiny-moe": Shape("qwen3moe", 256, 512, 2, 4, 2, 64, 512, Experts(8, 2, 256)),
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a block keeps its f16 scales, and what each is multiplied with to make the weights'
    mean about zero."""

    at: tuple[int, ...]
    factors: tuple[float, ...] = (1.0,)


_LAYOUTS = {
    "Q4_0": _Layout((0,)),
    "Q4_1": _Layout((0, 2), (1.0, -7.5)),
    "Q5_0": _Layout((0,)),
    "Q5_1": _Layout((0, 2), (1.0, -15.5)),
    "Q8_0": _Layout((0,)),
    "Q3_K": _Layout((108,)),
    "Q4_K": _Layout((0, 2), (1.0, 7.5)),
    "Q5_K": _Layout((0, 2), (1.0, 15.5)),
    "Q6_K": _Layout((208,)),
    "IQ4_NL": _Layout((0,)),
    "IQ4_XS": _Layout((0,)),
}
_REQUANTISED = ("MXFP4",)  # gguf cannot write these: llama.cpp makes them from Q8_0
TYPES = (*_LAYOUTS, *_REQUANTISED, "F16", "BF16", "F32")


def synthetic(family: str, type_name: str, *, folder: Path | None = None) -> Path:
    """The model of that name in that type, written if the folder (default: the cache) lacks it."""
    if family not in SHAPES or type_name not in TYPES:
        raise ToolError(
            f"there is no synthetic model {family}:{type_name}",
            f"one of {', '.join(SHAPES)} in one of {', '.join(TYPES)}",
        )
    folder = folder or cache_folder()
    out = folder / f"synthetic-{_FORMAT}-{family}-{type_name}.gguf"
    if out.is_file():
        return out
    print(f"writing {out.name}", flush=True)
    if type_name in _REQUANTISED:
        write_requantised(synthetic(family, "Q8_0", folder=folder), out, FILE_TYPES[type_name])
        return out
    partial = out.with_suffix(".partial")
    _write(partial, SHAPES[family], type_name)
    partial.replace(out)
    return out


def _write(path: Path, shape: Shape, type_name: str) -> None:
    writer = GGUFWriter(path, shape.architecture)
    add_sizes(writer, shape)
    writer.add_tokenizer_model("none")
    _add_tensors(writer, shape, GGMLQuantizationType[type_name])
    finish(writer)


def add_sizes(writer: GGUFWriter, shape: Shape) -> None:
    """The keys that say how large a model is."""
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.n_vocab)
    if shape.experts:
        writer.add_expert_count(shape.experts.n)
        writer.add_expert_used_count(shape.experts.n_used)
        writer.add_expert_feed_forward_length(shape.experts.n_ff)


def _add_tensors(writer: GGUFWriter, shape: Shape, kind: GGMLQuantizationType) -> None:
    tensors = Tensors(writer)
    tensors.matrix("token_embd", kind, shape.n_vocab, shape.n_embd)
    tensors.norm("output_norm", shape.n_embd)
    tensors.matrix("output", kind, shape.n_vocab, shape.n_embd)
    for i in range(shape.n_layer):
        tensors.layer(f"blk.{i}", kind, shape)


class Tensors:
    """Adds random tensors to a file, all from one stream: a file is always the same."""

    def __init__(self, writer: GGUFWriter) -> None:
        self._writer = writer
        self._random = np.random.default_rng(1)

    def norm(self, name: str, length: int) -> None:
        """The weights of a norm that leaves values alone."""
        self._writer.add_tensor(f"{name}.weight", np.ones(length, np.float32))

    def matrix(
        self, name: str, kind: GGMLQuantizationType, n_out: int, n_in: int, n_experts: int = 0
    ) -> None:
        """One matrix, or one per expert."""
        blocks = random_matrix(self._random, kind, max(n_experts, 1) * n_out, n_in)
        shaped = blocks.reshape(n_experts, n_out, -1) if n_experts else blocks
        self._writer.add_tensor(f"{name}.weight", shaped, raw_dtype=kind)

    def layer(self, block: str, kind: GGMLQuantizationType, shape: Shape) -> None:
        """One layer of attention, and of a feed-forward network or experts."""
        q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        self.norm(f"{block}.attn_norm", shape.n_embd)
        self.norm(f"{block}.ffn_norm", shape.n_embd)
        self.matrix(f"{block}.attn_q", kind, q, shape.n_embd)
        self.matrix(f"{block}.attn_k", kind, kv, shape.n_embd)
        self.matrix(f"{block}.attn_v", kind, kv, shape.n_embd)
        self.matrix(f"{block}.attn_output", kind, shape.n_embd, q)
        if shape.architecture in _WITH_HEAD_NORMS:
            self.norm(f"{block}.attn_q_norm", shape.head_dim)
            self.norm(f"{block}.attn_k_norm", shape.head_dim)
        if shape.experts is None:
            self.matrix(f"{block}.ffn_gate", kind, shape.n_ff, shape.n_embd)
            self.matrix(f"{block}.ffn_up", kind, shape.n_ff, shape.n_embd)
            self.matrix(f"{block}.ffn_down", kind, shape.n_embd, shape.n_ff)
            return
        n, n_ff = shape.experts.n, shape.experts.n_ff
        # the router stays float32, as in real files
        router = self._random.standard_normal((n, shape.n_embd)) / np.sqrt(shape.n_embd)
        self._writer.add_tensor(f"{block}.ffn_gate_inp.weight", router.astype(np.float32))
        self.matrix(f"{block}.ffn_gate_exps", kind, n_ff, shape.n_embd, n)
        self.matrix(f"{block}.ffn_up_exps", kind, n_ff, shape.n_embd, n)
        self.matrix(f"{block}.ffn_down_exps", kind, shape.n_embd, n_ff, n)

    def small(self, name: str, deviation: float, *lengths: int) -> None:
        """Normal values about 0 in float32, under exactly this name."""
        values = deviation * self._random.standard_normal(lengths, np.float32)
        self._writer.add_tensor(name, values.astype(np.float32))


def random_matrix(
    random: np.random.Generator,
    kind: GGMLQuantizationType,
    n_out: int,
    n_in: int,
    *,
    deviation: float | None = None,
) -> npt.NDArray[np.generic]:
    """Random weights, as GGUF stores them. deviation: about theirs (default: 1/sqrt(n_in))."""
    deviation = deviation or 1 / np.sqrt(n_in)
    if kind.name in ("F32", "F16"):
        values = random.standard_normal((n_out, n_in), np.float32) * np.float32(deviation)
        halves: npt.NDArray[np.generic] = values.astype(np.float16)
        return values if kind.name == "F32" else halves
    if kind.name == "BF16":
        values = random.standard_normal((n_out, n_in), np.float32) * np.float32(deviation)
        # the upper halves of float32, which rounds towards zero
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    unit = _random_blocks(random, kind, 4, n_in, 1.0)
    spread = float(np.std(dequantize(unit, kind)))
    return _random_blocks(random, kind, n_out, n_in, deviation / spread)


def _random_blocks(
    random: np.random.Generator, kind: GGMLQuantizationType, n_out: int, n_in: int, scale: float
) -> _Bytes:
    n_weights, n_bytes = GGML_QUANT_SIZES[kind]
    blocks: _Bytes = random.integers(0, 256, (n_out * (n_in // n_weights), n_bytes), dtype=np.uint8)
    layout = _LAYOUTS[kind.name]
    sizes = scale * random.uniform(0.5, 1.5, len(blocks)).astype(np.float32)
    for at, factor in zip(layout.at, layout.factors, strict=True):
        halves = (factor * sizes).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n_out, -1)
