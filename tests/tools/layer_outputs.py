"""What llama.cpp computes, read with its own functions: greedy texts, and the hidden states between
the layers, once by this library's callback and once by one of Python's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

import pydflash2
from pydflash2._ffi import address, check, ffi, library

Rows = npt.NDArray[np.float32]


def greedy(llama: llama_cpp.Llama, prompt: Sequence[int], n_tokens: int) -> tuple[list[int], float]:
    """The most probable continuation, to its end-of-generation token if there is one, and the least
    distance of the two best logits. What llama remembers of its context is then wrong."""
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)
    text: list[int] = []
    gap = np.inf
    batch = list(prompt)
    while len(text) < n_tokens and not (text and llama_cpp.llama_vocab_is_eog(vocab, text[-1])):
        _decode(llama.ctx, batch, llama.n_batch)
        logits = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        row = np.ctypeslib.as_array(logits, (llama.n_vocab(),))
        second, best = np.argsort(row)[-2:]
        gap = min(gap, float(row[best] - row[second]))
        text.append(int(best))
        batch = text[-1:]
    return text, gap


def _decode(context: Any, tokens: Sequence[int], n_batch: int) -> None:
    for begin in range(0, len(tokens), n_batch):
        part = tokens[begin : begin + n_batch]
        array = (llama_cpp.llama_token * len(part))(*part)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(part))) == 0


@contextlib.contextmanager
def _context(llama: llama_cpp.Llama, callback: Any, data: int) -> Iterator[int]:
    """Another context like llama's, with an evaluation callback."""
    params = type(llama.context_params).from_buffer_copy(llama.context_params)
    params.cb_eval, params.cb_eval_user_data = callback, data
    context = llama_cpp.llama_init_from_model(llama.model, params)
    assert context is not None
    try:
        yield context
    finally:
        llama_cpp.llama_free(context)


@contextlib.contextmanager
def target_with_callback(llama: llama_cpp.Llama) -> Iterator[pydflash2.Target]:
    """llama's model in a context of its own, whose hidden states df2_taps_eval reads."""
    taps = ffi.new("df2_taps **")
    check(library().df2_taps_create(taps))
    callback = llama_cpp.ggml_backend_sched_eval_callback(address(library().df2_taps_eval))
    with _context(llama, callback, address(taps[0])) as context:
        out = ffi.new("df2_target **")
        pointer = ffi.cast("struct llama_context *", context)
        check(library().df2_target_attach(out, pointer, taps[0]))
        target = pydflash2.Target.__new__(pydflash2.Target)
        target.n_batch = llama.n_batch
        target._adopt(out[0], llama)
        with target:
            yield target
    library().df2_taps_free(taps[0])


def layer_outputs(
    llama: llama_cpp.Llama, tokens: Sequence[int], layers: Sequence[int], *, n_streams: int = 1
) -> dict[int, Rows]:
    """The hidden states after some layers (1: the first), [n_tokens, n_embd] each. n_streams: each
    token has as many of them, one after the other, whose mean is taken."""
    ggml = ggml_base()
    n_embd = llama.n_embd()
    n_batch = int(llama.context_params.n_ubatch)
    names = {f"l_out-{layer - 1}".encode(): layer for layer in layers}
    parts: dict[int, list[Rows]] = {layer: [] for layer in layers}

    def on_tensor(tensor: int, is_asking: bool, data: int) -> bool:
        layer = names.get(ggml.ggml_get_name(tensor))
        if is_asking or layer is None:
            return layer is not None or not is_asking
        n_values = ggml.ggml_nelements(tensor)
        values = (ctypes.c_float * n_values).from_address(ggml.ggml_get_data(tensor))
        # where there are several streams of hidden states, the first one comes first
        rows = np.array(values).reshape(-1, n_streams, n_embd)
        parts[layer].append(rows[: batch.n_tokens].mean(axis=1))
        return True

    callback = llama_cpp.ggml_backend_sched_eval_callback(on_tensor)
    batch = llama_cpp.llama_batch_init(n_batch, 0, 1)
    with _context(llama, callback, 0) as context:
        for begin in range(0, len(tokens), n_batch):
            batch.n_tokens = min(n_batch, len(tokens) - begin)
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i] = tokens[begin + i], begin + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = True  # the last layer computes no other rows
            assert llama_cpp.llama_decode(context, batch) == 0
    llama_cpp.llama_batch_free(batch)
    return {layer: np.concatenate(rows) for layer, rows in parts.items()}


class GgufParams(ctypes.Structure):
    """gguf_init_params"""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def ggml_base() -> ctypes.CDLL:
    """The library behind llama.cpp, which is in the process already."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    ggml = ctypes.CDLL(str(next(folder.glob("*ggml-base*"))))
    ggml.ggml_get_name.argtypes, ggml.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    ggml.ggml_get_data.argtypes, ggml.ggml_get_data.restype = [ctypes.c_void_p], ctypes.c_void_p
    ggml.ggml_nelements.argtypes, ggml.ggml_nelements.restype = [ctypes.c_void_p], ctypes.c_int64
    ggml.ggml_n_dims.argtypes, ggml.ggml_n_dims.restype = [ctypes.c_void_p], ctypes.c_int
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, GgufParams]
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_free.argtypes, ggml.gguf_free.restype = [ctypes.c_void_p], None
    return ggml


def plain_texts(path: Path, prompts: Sequence[list[int]], n_tokens: int) -> list[list[int]]:
    """What llama.cpp makes of prompts, token by token, in a context of 256."""
    llama = llama_cpp.Llama(
        str(path),
        n_ctx=256,
        n_threads=1,
        n_threads_batch=1,
        n_gpu_layers=0,
        flash_attn=True,  # as load() has it
        verbose=False,
    )
    texts = [greedy(llama, prompt, n_tokens)[0] for prompt in prompts]
    llama.close()
    return texts
