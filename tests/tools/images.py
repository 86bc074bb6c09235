"""What a program does that shows a model an image: llama.cpp's multimodal library (mtmd) decodes
its embeddings as a batch of their own."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np

WIDTH, HEIGHT = 3, 2


def decode_image(context: Any, position: int, *, sequence: int = 0) -> int:
    """Decodes random embeddings of WIDTH x HEIGHT rows. Returns the position that the text behind
    it goes on with: with M-RoPE an image takes as many as its longer side."""
    model = llama_cpp.llama_get_model(context)
    n_rows = WIDTH * HEIGHT
    n_embd = llama_cpp.llama_model_n_embd(model)
    rows = np.random.default_rng(7).standard_normal((n_rows, n_embd)).astype(np.float32)
    rope = llama_cpp.llama_model_rope_type(model)
    is_grid = rope in (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)
    if is_grid:  # planes of time, row, column, and one that is not used
        cells = np.arange(n_rows)
        row, column = position + cells // WIDTH, position + cells % WIDTH
        positions = np.stack([np.full(n_rows, position), row, column, np.zeros(n_rows)])
    else:
        positions = position + np.arange(n_rows)
    positions = np.ascontiguousarray(positions, np.int32)
    ids = (llama_cpp.llama_seq_id * 1)(sequence)
    batch = llama_cpp.llama_batch(
        n_tokens=n_rows,
        embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        pos=positions.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos)),
        n_seq_id=(ctypes.c_int32 * n_rows)(*[1] * n_rows),
        seq_id=(ctypes.POINTER(llama_cpp.llama_seq_id) * n_rows)(*[ids] * n_rows),
        logits=(ctypes.c_int8 * n_rows)(*[0] * (n_rows - 1), 1),
    )
    assert llama_cpp.llama_decode(context, batch) == 0
    return position + (max(WIDTH, HEIGHT) if is_grid else n_rows)
