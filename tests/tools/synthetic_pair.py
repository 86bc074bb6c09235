"""A target and its DFlash2 drafter of real size and random weights, for timing drafts alone.

Both are laid out as real files are: the target with its embeddings for a head, in Q6_K, the other
matrices in Q4_K, as ``Q4_K_M`` has them; the drafter in Q8_0, as ``pydflash2 convert`` writes it.
The target has only a few layers, since a draft sees no more of it than its head and the inputs of
some layers. No drafted token is ever right, which a draft's time does not depend on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

from tests.tools.errors import ToolError
from tests.tools.files import cache_folder
from tests.tools.gguf_files import finish
from tests.tools.synthetic import Shape, Tensors, add_sizes

_FORMAT = 1  # of the files; raised when what is written changes
_MATRICES = GGMLQuantizationType.Q4_K
_HEAD = GGMLQuantizationType.Q6_K
_DRAFTER = GGMLQuantizationType.Q8_0
_CONTROL = ("<|im_start|>", "<|im_end|>", "<|mask|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class PairShape:
    """A target's shape and what its drafter has besides. ``taps``: layer inputs, as in the file;
    ``n_reduced``: tokens of the reduced draft vocabulary."""

    target: Shape
    n_layer: int
    taps: tuple[int, ...]
    kernel_size: int
    group_size: int
    rank: int
    top_k: int
    block_size: int
    n_reduced: int

    @property
    def drafter(self) -> Shape:
        """The drafter's layers: as wide as the target's."""
        t = self.target
        return Shape(
            "dflash", t.n_embd, t.n_ff, self.n_layer, t.n_head, t.n_head_kv, t.head_dim, t.n_vocab
        )


PAIRS = {
    # as Qwen3 4B, with 6 of its 36 layers: what its five taps need
    "qwen3-4b": PairShape(
        Shape("qwen3", 2560, 9728, 6, 32, 8, 128, 151936),
        n_layer=5,
        taps=(1, 2, 3, 4, 5),
        kernel_size=2,
        group_size=16,
        rank=256,
        top_k=16,
        block_size=8,
        n_reduced=16384,
    ),
    # small enough for tests
    "tiny": PairShape(
        Shape("qwen3", 512, 768, 3, 4, 2, 128, 1024),
        n_layer=2,
        taps=(1, 2),
        kernel_size=2,
        group_size=16,
        rank=64,
        top_k=16,
        block_size=8,
        n_reduced=256,
    ),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of one pair. ``reduced``: the drafter with the reduced vocabulary."""

    target: Path
    drafter: Path
    reduced: Path


def synthetic_pair(name: str, *, folder: Path | None = None) -> Pair:
    """The pair of that name, written where the folder (default: the cache) lacks it."""
    if name not in PAIRS:
        raise ToolError(f"there is no synthetic pair {name}", f"one of {', '.join(PAIRS)}")
    shape = PAIRS[name]
    stem = (folder or cache_folder()) / f"pair-{_FORMAT}-{name}"
    pair = Pair(
        target=stem.with_name(f"{stem.name}-target-{_MATRICES.name}.gguf"),
        drafter=stem.with_name(f"{stem.name}-drafter-{_DRAFTER.name}.gguf"),
        reduced=stem.with_name(f"{stem.name}-drafter-{_DRAFTER.name}-{shape.n_reduced}.gguf"),
    )
    for out, write in (
        (pair.target, _write_target),
        (pair.drafter, partial(_write_drafter, is_reduced=False)),
        (pair.reduced, partial(_write_drafter, is_reduced=True)),
    ):
        if not out.is_file():
            print(f"writing {out.name}", flush=True)
            unfinished = out.with_suffix(".partial")
            write(unfinished, shape)
            unfinished.replace(out)
    return pair


def _write_target(path: Path, shape: PairShape) -> None:
    target = shape.target
    writer = GGUFWriter(path, target.architecture)
    add_sizes(writer, target)
    add_tokenizer(writer, target.n_vocab)
    tensors = Tensors(writer)
    tensors.matrix("token_embd", _HEAD, target.n_vocab, target.n_embd)
    tensors.norm("output_norm", target.n_embd)
    for i in range(target.n_layer):
        tensors.layer(f"blk.{i}", _MATRICES, target)
    finish(writer)


def _write_drafter(path: Path, shape: PairShape, *, is_reduced: bool) -> None:
    drafter = shape.drafter
    n_embd, n_vocab = drafter.n_embd, drafter.n_vocab
    writer = GGUFWriter(path, drafter.architecture)
    add_sizes(writer, drafter)
    for key, value in (
        ("block_size", shape.block_size),
        ("conv_kernel_size", shape.kernel_size),
        ("conv_group_size", shape.group_size),
        ("selector_rank", shape.rank),
        ("selector_top_k", shape.top_k),
    ):
        writer.add_uint32(f"dflash.{key}", value)
    writer.add_bool("dflash.attention.causal", False)
    writer.add_array("dflash.target_layers", list(shape.taps))
    add_tokenizer(writer, n_vocab)
    tensors = Tensors(writer)
    tensors.matrix("fc", _DRAFTER, n_embd, len(shape.taps) * n_embd)
    tensors.norm("enc.output_norm", n_embd)
    tensors.norm("output_norm", n_embd)
    n_coefficients = 2 * shape.kernel_size * (n_embd // shape.group_size)
    for i in range(drafter.n_layer):
        tensors.layer(f"blk.{i}", _DRAFTER, drafter)
        for part in ("attn", "ffn"):
            base = f"blk.{i}.{part}_conv_base"
            tensors.small(base, 1 / shape.kernel_size, 2, shape.kernel_size, n_embd)
            tensors.matrix(f"blk.{i}.{part}_conv_proj", _DRAFTER, n_coefficients, n_embd)
    tensors.matrix("selector_hidden", _DRAFTER, shape.rank, n_embd)
    tensors.matrix("selector_predecessor", _DRAFTER, n_vocab, shape.rank)
    tensors.matrix("selector_successor", _DRAFTER, n_vocab, shape.rank)
    # Last, so that both drafters have all other weights in common.
    if is_reduced:
        tensors.matrix("output", _HEAD, shape.n_reduced, n_embd)
        ids = np.linspace(0, n_vocab - 1, shape.n_reduced).astype(np.int64)
        writer.add_tensor("d2t", ids)
    finish(writer)


def add_tokenizer(writer: GGUFWriter, n_vocab: int) -> None:
    """One token per byte, a few control tokens, and names for the rest of the vocabulary."""
    texts = [*_byte_texts(), "\u0120t"]  # a space and a t: the single merge
    texts += [f"[{i}]" for i in range(len(texts), n_vocab - len(_CONTROL))]
    texts += _CONTROL
    kinds = [TokenType.NORMAL] * (n_vocab - len(_CONTROL)) + [TokenType.CONTROL] * len(_CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(["\u0120 t"])
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_mask_token_id(texts.index("<|mask|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)


def _byte_texts() -> list[str]:
    """How byte-level tokenizers spell the 256 bytes: printable ones as themselves, the others as
    the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
