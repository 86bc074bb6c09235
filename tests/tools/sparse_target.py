"""A target of real size whose file takes no room: all of its header, and nothing of its weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from tests.tools.synthetic import Shape, add_sizes

_ALIGNMENT = 32
_TYPE = GGMLQuantizationType.Q4_K


def write_sparse_target(path: Path, shape: Shape) -> Path:
    """Write a dense target whose matrices are Q4_K and, like everything else, zeros. Returns
    `path`."""
    writer = GGUFWriter(path, shape.architecture)
    add_sizes(writer, shape)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(shape.n_vocab)])
    writer.add_token_scores([0.0] * shape.n_vocab)
    writer.add_token_types([1] * shape.n_vocab)
    n_bytes = 0
    for name, lengths in _shapes(shape).items():
        kind = _TYPE if len(lengths) == 2 else GGMLQuantizationType.F32
        n_weights, block_bytes = GGML_QUANT_SIZES[kind]
        size = math.prod(lengths) // n_weights * block_bytes
        writer.add_tensor_info(name, lengths, np.dtype(np.float32), size, raw_dtype=kind)
        n_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    with path.open("r+b") as file:
        file.truncate(header + n_bytes)
    return path


def _shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Lengths of each tensor, the rows of matrices last."""
    n_embd, n_ff = shape.n_embd, shape.n_ff
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.n_vocab, n_embd),
        "output_norm.weight": (n_embd,),
        "output.weight": (shape.n_vocab, n_embd),
    }
    for i in range(shape.n_layer):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (n_embd,),
            f"blk.{i}.attn_q.weight": (q, n_embd),
            f"blk.{i}.attn_k.weight": (kv, n_embd),
            f"blk.{i}.attn_v.weight": (kv, n_embd),
            f"blk.{i}.attn_output.weight": (n_embd, q),
            f"blk.{i}.ffn_norm.weight": (n_embd,),
            f"blk.{i}.ffn_gate.weight": (n_ff, n_embd),
            f"blk.{i}.ffn_up.weight": (n_ff, n_embd),
            f"blk.{i}.ffn_down.weight": (n_embd, n_ff),
        }
    return shapes
