"""A target without half precision anywhere."""

from __future__ import annotations

from pathlib import Path

import llama_cpp


def open_exact(path: Path, *, n_ctx: int) -> llama_cpp.Llama:
    """Load a float32 model with a float32 cache and without flash attention, which would round to
    half precision: what remains are differences in the order of additions."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=n_ctx,
        n_gpu_layers=0,
        n_threads=2,
        n_threads_batch=2,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
    )
