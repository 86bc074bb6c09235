"""Contexts as a program may create them, and the logits that a fresh computation gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

FRESH_WIDTH = 48
"""Rows of a fresh computation: products that the kernels leave to ggml are the same up to 64."""

SNAPSHOTS = {"n_rs_seq": 7}
KEPT = {"n_rs_seq": 8}
MARKS = {"n_seq_max": 2, "kv_unified": True}


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


def row_of(context: Any, i: int) -> Logits:
    """Logits of the i-th token of the last decode; from its end, below 0."""
    model = llama_cpp.llama_get_model(context)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    row = llama_cpp.llama_get_logits_ith(context, i)
    return np.ctypeslib.as_array(row, (n_vocab,)).copy()


class Fresh:
    """A context that never goes back: another text than before is computed from its beginning."""

    def __init__(self, context: Any, width: int = FRESH_WIDTH) -> None:
        self._context, self._width = context, width
        self._tokens: list[int] = []
        self._rows: list[Logits] = []

    def logits(self, tokens: Sequence[int]) -> Logits:
        """[n_tokens, n_vocab]"""
        wanted = list(tokens)
        if wanted[: len(self._tokens)] != self._tokens:
            shorter = self._tokens[: len(wanted)] == wanted
            if not shorter:
                self.clear()
        for begin in range(len(self._tokens), len(wanted), self._width):
            self._decode(wanted[begin : begin + self._width])
        return np.array(self._rows[: len(wanted)])

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._tokens, self._rows = [], []

    def _decode(self, tokens: list[int]) -> None:
        begin = len(self._tokens)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, begin + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(self._context, batch) == 0
        llama_cpp.llama_batch_free(batch)
        self._rows += [row_of(self._context, i) for i in range(len(tokens))]
        self._tokens += tokens


def logits_of(context: Any, tokens: Sequence[int], width: int) -> Logits:
    """A fresh computation, so many rows at a time: [n_tokens, n_vocab]."""
    fresh = Fresh(context, width)
    fresh.clear()
    return fresh.logits(tokens)
