"""Times decodes of one model, for the cost curve: a worker of `ask`."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import numpy as np

from tests.tools.decoder import MAX_BATCH, Logits, open_decoder
from tests.tools.worker_process import serve


def cost(request: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds per decode of so many tokens, all of them asking for logits, at one depth.

    All widths come in turn, pass by pass, so that a disturbance does not hit one of them alone.
    Every width begins with an untimed decode: llama.cpp builds a graph for a new width and keeps it
    for the next decode of the same width.
    """
    model = open_decoder(request)
    depth: int = request["depth"]
    widths: list[int] = request["widths"]
    n_prefill: int = request["n_prefill"]
    tokens = _pseudo_random_tokens(depth + max(n_prefill, *widths), model.n_vocab)
    for first in range(0, depth, MAX_BATCH):
        model.decode(tokens[first : min(depth, first + MAX_BATCH)], first, all_logits=False)
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


if __name__ == "__main__":
    sys.exit(serve({"cost": cost}))
