"""Reads texts with one model, says what kernels there are, and quantises: a worker of `ask`."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tools import kernels
from tests.tools.decoder import open_decoder
from tests.tools.errors import ToolError
from tests.tools.worker_process import serve


def kernels_state(request: dict[str, Any]) -> dict[str, Any]:
    """What became of our kernels in this process."""
    return kernels.state()


def perplexity(request: dict[str, Any]) -> dict[str, Any]:
    """Negative log-likelihoods of a text's tokens, read in windows, `width` tokens per decode.

    The first eighth of a window only serves as context. Every window is a sequence of its own.
    """
    model = open_decoder(request)
    tokens = model.tokenize(request["text"], is_prompt=False)[: request["n_tokens"]]
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
    model = open_decoder(request)
    n_rows = 0
    with Path(request["out"]).open("wb") as file:
        for prompt in request["prompts"]:
            tokens = model.tokenize(prompt, is_prompt=False)
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
        raise ToolError(
            f"llama.cpp cannot quantise {request['source']}: {reason}",
            "leave this type out, or give another source with --source",
        )
    return {"n_bytes": Path(request["out"]).stat().st_size}


if __name__ == "__main__":
    sys.exit(
        serve(
            {
                "kernels": kernels_state,
                "perplexity": perplexity,
                "logits": logits,
                "quantise": quantise,
            }
        )
    )
