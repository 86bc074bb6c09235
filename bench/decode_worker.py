"""Decodes with one model in a process of its own, for the cost curve and the accuracy checks.

Started by path like ``worker.py``, and for the same reasons it imports nothing from its neighbours.
Whether the process uses pydflash2's kernels is decided here, in ``enable_kernels``, before a model
is loaded: kernels take over a model's weights as they are read.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
_BATCH = 512  # the most tokens of one decode here
_KERNELS_ACTIVE = 1  # DF2_KERNELS_ACTIVE


class WorkerError(Exception):
    """What went wrong, and what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def main() -> int:
    """Reads the request, runs it, prints the reply."""
    request: dict[str, Any] = json.load(sys.stdin)
    tasks: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "kernels": kernels,
        "cost": cost,
        "perplexity": perplexity,
        "logits": logits,
        "quantise": quantise,
    }
    try:
        reply = tasks[request["task"]](request)
    except ImportError as error:
        reply = {"error": f"{error.name or 'a package'} cannot be imported: {error}"}
    except WorkerError as error:
        reply = {"error": str(error), "remedy": error.remedy}
    print(json.dumps(reply), flush=True)
    return 1 if "error" in reply else 0


class _KernelsInfo(ctypes.Structure):
    """``df2_kernels_info`` of dflash2.h."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("state", ctypes.c_int32),
        ("isa", ctypes.c_char_p),
        ("note", ctypes.c_char_p),
        ("packed_bytes", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
    )


def kernels(request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Asks for pydflash2's kernels, and says what came of it: ``df2_kernels_info``'s fields."""
    import llama_cpp  # noqa: F401  (first, so that the process holds one libllama)

    path = os.environ.get("DFLASH2_LIBRARY")
    if path is None:
        from pydflash2 import _ffi

        path = str(_ffi.library_path())
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise WorkerError(str(error), "reinstall pydflash2; unset DFLASH2_LIBRARY") from error
    if not hasattr(library, "df2_kernels_enable"):
        raise WorkerError(
            f"{Path(path).name} has no kernels", "reinstall pydflash2; unset DFLASH2_LIBRARY"
        )
    library.df2_error_last.restype = ctypes.c_char_p
    info = _KernelsInfo(struct_size=ctypes.sizeof(_KernelsInfo))
    for status in (library.df2_kernels_enable(), library.df2_kernels_info_get(ctypes.byref(info))):
        if status < 0:
            message = library.df2_error_last().decode(errors="replace")
            raise WorkerError(message, "the message says what to do")
    return {"state": info.state, "isa": info.isa.decode(), "note": info.note.decode()}


def enable_kernels() -> str:
    """Puts pydflash2's kernels in front of llama.cpp's own, for the models loaded from here on.

    Returns the instruction set they use. Kernels that cannot be used are an error here.
    """
    found = kernels()
    if found["state"] != _KERNELS_ACTIVE:
        raise WorkerError(
            f"the kernels are not in use: {found['note']}", "--systems stock leaves them out"
        )
    return str(found["isa"])


class Model:
    """A model and one context, through llama-cpp-python's low-level interface.

    ``exact`` is for float32 models: a float32 cache and no flash attention, so that nothing rounds
    to half precision.
    """

    def __init__(self, path: str, *, n_ctx: int, n_threads: int, exact: bool = False) -> None:
        import llama_cpp.llama_cpp as lib

        self.lib = lib
        self.isa: str | None = None
        self.log: list[str] = []
        # Kept on self: llama.cpp holds on to the pointer for the life of the process.
        self._callback = lib.llama_log_callback(self._on_log)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            path.encode(), lib.llama_model_default_params()
        )
        if not self._model:
            raise WorkerError(
                f"llama.cpp cannot load {path}: {self._last_error()}",
                "name a GGUF that llama.cpp runs; delete it if the bench wrote it",
            )
        self.vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = n_threads
        if exact:
            params.type_k = params.type_v = lib.GGML_TYPE_F32
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = lib.llama_init_from_model(self._model, params)
        if not self.context:
            raise WorkerError(
                f"llama.cpp cannot create a context of {n_ctx} tokens: {self._last_error()}",
                "ask for less depth, or free memory",
            )
        self._memory = lib.llama_get_memory(self.context)
        self._batch = lib.llama_batch_init(_BATCH, 0, 1)

    def _on_log(self, level: int, text: bytes, payload: Any) -> None:
        self.log.append(text.decode(errors="replace").strip())

    def _last_error(self) -> str:
        return next((line for line in reversed(self.log) if "error" in line), "no reason given")

    def weight_buffers(self) -> dict[str, float]:
        """MiB of weights in each kind of buffer, by ggml's names, as the log tells."""
        buffers: dict[str, float] = {}
        for line in self.log:
            name, separator, size = line.partition(" model buffer size =")
            if separator:
                # "load_tensors:   CPU_REPACK" and "  76.50 MiB"
                buffers[name.split()[-1]] = float(size.split()[0])
        return buffers

    def tensor_types(self) -> dict[str, int]:
        """How many tensors of each type the file holds, as the log tells."""
        found = (re.search(r"- type +(\w+): +(\d+) tensors", line) for line in self.log)
        return {match[1]: int(match[2]) for match in found if match}

    def description(self) -> str:
        """Architecture, size and type, in llama.cpp's words."""
        room = ctypes.create_string_buffer(256)
        self.lib.llama_model_desc(self._model, room, len(room))
        return room.value.decode(errors="replace")

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without the one that begins texts."""
        raw = text.encode()
        room = (self.lib.llama_token * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, False)
        if n < 0:
            raise WorkerError("llama.cpp cannot tokenize the text", "use a model with a tokenizer")
        return list(room[:n])

    def decode(self, tokens: Sequence[int], position: int, *, all_logits: bool) -> None:
        """Appends tokens at a position and waits for the result."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        self.run()

    def run(self) -> None:
        """Decodes the batch as the last call of `decode` left it."""
        if self.lib.llama_decode(self.context, self._batch) != 0:
            raise WorkerError("llama_decode failed", "ask for less depth or fewer tokens")
        self.lib.llama_synchronize(self.context)

    def rewind(self, n_tokens: int) -> None:
        """Forgets everything after the first tokens."""
        if not self.lib.llama_memory_seq_rm(self._memory, 0, n_tokens, -1):
            raise WorkerError(
                "this model's memory cannot be rewound token by token", "measure another model"
            )

    def rows(self, n: int) -> Logits:
        """The first n rows of logits, as a view of llama.cpp's memory."""
        pointer = self.lib.llama_get_logits(self.context)
        rows: Logits = np.ctypeslib.as_array(pointer, shape=(n, self.n_vocab))
        return rows


def _open(request: dict[str, Any]) -> Model:
    isa = enable_kernels() if request["kernels"] else None
    model = Model(
        request["model"],
        n_ctx=request["n_ctx"],
        n_threads=request["n_threads"],
        exact=request.get("exact", False),
    )
    model.isa = isa
    return model


def cost(request: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds per decode of so many tokens, all of them asking for logits, at one depth.

    All widths come in turn, pass by pass, so that a disturbance does not hit one of them alone.
    Every width begins with an untimed decode: llama.cpp builds a graph for a new width and keeps it
    for the next decode of the same width.
    """
    model = _open(request)
    depth: int = request["depth"]
    widths: list[int] = request["widths"]
    n_prefill: int = request["n_prefill"]
    tokens = _pseudo_random_tokens(depth + max(n_prefill, *widths), model.n_vocab)
    for first in range(0, depth, _BATCH):
        model.decode(tokens[first : min(depth, first + _BATCH)], first, all_logits=False)
    times: dict[int, list[float]] = {n: [] for n in (*widths, n_prefill)}
    rows: dict[int, str] = {}
    for _ in range(request["n_passes"]):
        for n in times:
            is_prefill = n == n_prefill
            model.decode(tokens[depth : depth + n], depth, all_logits=not is_prefill)
            if not is_prefill:
                rows[n] = _digest(model.rows(1))
            model.rewind(depth)
            for _ in range(request["n_prefills"] if is_prefill else request["n_decodes"]):
                began = time.perf_counter()
                model.run()
                times[n].append(1e3 * (time.perf_counter() - began))
                model.rewind(depth)
    model.decode(tokens[depth : depth + max(widths)], depth, all_logits=True)
    last = model.rows(max(widths)).copy()
    return {
        "description": model.description(),
        "tensor_types": model.tensor_types(),
        "isa": model.isa,
        "weight_buffers_mib": model.weight_buffers(),
        "ms": [{"n_tokens": n, "samples": samples} for n, samples in times.items()],
        # whether a token's logits depend on how many tokens were decoded beside it
        "is_row_independent": len(set(rows.values())) == 1,
        "is_finite": bool(np.isfinite(last).all()),
        # a few of them, to see that both sides compute the same model
        "logits": [float(x) for x in last.ravel()[:: max(1, last.size // 4096)]],
    }


def _pseudo_random_tokens(n: int, n_vocab: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(0, n_vocab, n)]


def _digest(row: Logits) -> str:
    return hashlib.sha256(row.tobytes()).hexdigest()


def perplexity(request: dict[str, Any]) -> dict[str, Any]:
    """Negative log-likelihoods of a text's tokens, read in windows, `width` tokens per decode.

    The first eighth of a window only serves as context. Every window is a sequence of its own.
    """
    model = _open(request)
    tokens = model.tokenize(request["text"])[: request["n_tokens"]]
    window: int = request["window"]
    width: int = request["width"]
    found: list[float] = []
    for start in range(0, len(tokens) - window + 1, window):
        part = tokens[start : start + window]
        model.rewind(0)
        for first in range(0, window, width):
            decoded = part[first : first + width]
            model.decode(decoded, first, all_logits=True)
            rows = model.rows(len(decoded)).astype(np.float64)
            for i, row in enumerate(rows):
                position = first + i + 1  # the token this row predicts
                if window // 8 <= position < window:
                    found.append(float(_log_sum_exp(row) - row[part[position]]))
    return {"losses": found, "isa": model.isa, "weight_buffers_mib": model.weight_buffers()}


def _log_sum_exp(row: npt.NDArray[np.float64]) -> float:
    top = row.max()
    return float(top + np.log(np.exp(row - top).sum()))


def logits(request: dict[str, Any]) -> dict[str, Any]:
    """All rows of logits after every prompt, written to a file: float32, prompt after prompt.

    Prompts are read `width` tokens at a time.
    """
    model = _open(request)
    n_rows = 0
    with Path(request["out"]).open("wb") as file:
        for prompt in request["prompts"]:
            tokens = model.tokenize(prompt)
            model.rewind(0)
            for first in range(0, len(tokens), request["width"]):
                decoded = tokens[first : first + request["width"]]
                model.decode(decoded, first, all_logits=True)
                model.rows(len(decoded)).tofile(file)
            n_rows += len(tokens)
    return {
        "n_rows": n_rows,
        "n_vocab": model.n_vocab,
        "isa": model.isa,
        "weight_buffers_mib": model.weight_buffers(),
    }


def quantise(request: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's own quantisation, the function behind its tool llama-quantize."""
    import llama_cpp.llama_cpp as lib

    lines: list[str] = []
    callback = lib.llama_log_callback(
        lambda level, text, data: lines.append(text.decode(errors="replace").strip())
    )
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    params = lib.llama_model_quantize_default_params()
    params.nthread = request["n_threads"]
    params.ftype = request["ftype"]
    params.allow_requantize = True
    if request["pure"]:
        params.pure = True
        params.token_embedding_type = lib.GGML_TYPE_Q8_0
        params.output_tensor_type = lib.GGML_TYPE_Q8_0
    source, out = request["source"].encode(), request["out"].encode()
    if lib.llama_model_quantize(source, out, ctypes.byref(params)) != 0:
        reason = next((line for line in reversed(lines) if line), "no reason given")
        raise WorkerError(
            f"llama.cpp cannot quantise {request['source']}: {reason}",
            "leave this type out, or give another source with --source",
        )
    return {"n_bytes": Path(request["out"]).stat().st_size}


if __name__ == "__main__":
    sys.exit(main())
