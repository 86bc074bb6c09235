"""Drafts, verifies and accepts on one prompt with pydflash2: a worker of `ask`.

Every cycle drafts all the tokens it was asked for, as llama.cpp's own drafting does: a block that
was cut short for the last few tokens would cost less.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.tools.worker_process import serve


def draft(request: dict[str, Any]) -> dict[str, Any]:
    """Goes on until a cycle reaches ``n_predict`` tokens, or the text ends."""
    import llama_cpp  # noqa: F401  (first, so that the process holds one libllama)

    from pydflash2 import Drafter, Session, Target

    n_draft: int = request["n_draft"]
    with (
        Target(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"]) as target,
        Drafter(request["drafter"]) as drafter,
        Session(target, drafter, n_draft=n_draft) as session,
    ):
        prompt: list[int] = request["prompt_tokens"]
        session.prefill(prompt[:2])  # warm-up, as for the others: two tokens through the target
        session.rewind(0)
        session.prefill(prompt)
        step = session.step(1)
        session.reset_stats()
        n_decoded = 0
        while n_decoded < request["n_predict"] and not step.is_end:
            step = session.step()
            n_decoded += len(step.tokens)
        stats = session.stats()
    return {
        "draft_us": stats.draft_us,
        "n_cycles": stats.n_cycles,
        "n_whole_drafts": stats.drafted_at[n_draft - 1],
        "n_decoded": n_decoded,
        "drafter_packed_bytes": stats.drafter_packed_bytes,
    }


if __name__ == "__main__":
    sys.exit(serve({"draft": draft}))
