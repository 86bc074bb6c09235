"""Times a session on a pair whose drafter is right as often as asked: a worker of `ask`.

Where a target is to go back in another way than the one this library would choose, the context is
made here, as a program would, and attached.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tests.tools.recited_pair import N_RING, ring
from tests.tools.worker_process import serve

from .worker import decode_timed

if TYPE_CHECKING:
    from pydflash2 import Target

_PROMPT = [300 + i for i in range(63)]  # then the ring begins
# Parameters of a context that goes back in this way.
_WAYS: dict[str, dict[str, Any]] = {
    "marks": {"n_seq_max": 2, "kv_unified": True},
}


def hybrid(request: dict[str, Any]) -> dict[str, Any]:
    """One text."""
    import llama_cpp  # noqa: F401  (first, so that the process holds one libllama)

    from pydflash2 import Drafter, Session

    n_draft: int = request["n_draft"]
    with _target(request) as target:
        drafter = Drafter(request["drafter"]) if n_draft else None
        session = Session(target, drafter, n_draft=n_draft)
        prompt = [*_PROMPT, ring()[0]]
        reply = decode_timed(session, prompt, request["n_predict"])
        session.close()
    text = ring()
    n = len(reply["tokens"])
    reply["is_expected"] = reply["tokens"] == [text[(i + 1) % N_RING] for i in range(n)]
    return reply


def _target(request: dict[str, Any]) -> AbstractContextManager[Target]:
    from pydflash2 import Target

    way = request["way"]
    if way is None:
        return Target(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
    return _attached(request, _WAYS[way])


def _attached(request: dict[str, Any], options: dict[str, Any]) -> Target:
    import llama_cpp

    from pydflash2 import Target, enable_kernels

    enable_kernels()
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(request["target"].encode(), model_params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = request["n_ctx"]
    params.n_threads = params.n_threads_batch = request["n_threads"]
    for name, value in options.items():
        setattr(params, name, value)
    context = llama_cpp.llama_init_from_model(model, params)
    return Target.attach(context)


if __name__ == "__main__":
    sys.exit(serve({"hybrid": hybrid}))
