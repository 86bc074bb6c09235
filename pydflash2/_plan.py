"""What a target and its drafter take of the memory, known before any of it is allocated."""

from __future__ import annotations

import os
from dataclasses import dataclass

from typing_extensions import Unpack

from pydflash2._exit import native_call
from pydflash2._ffi import check, ffi, library, text
from pydflash2._options import CacheType, SessionOptions
from pydflash2._raw import (
    drafter_options,
    encode_path,
    session_options,
    sized,
    target_options,
)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, as df2_plan has them. Left out is what does not grow with what is asked for: the
    vocabulary, graphs, the program; tens of MB."""

    n_ctx: int  # as llama.cpp rounds it; less than asked for, by millions, if that does not fit
    kernels: bool  # False: off, or there is no memory for their packed weights
    available_bytes: int | None  # of the machine or the control groups, or max_bytes; None: unknown
    total_bytes: int  # what stays in memory: all that follow but the mapped ones
    target_mapped_bytes: int  # weights read from the file's mapping: pages the system may drop
    drafter_mapped_bytes: int
    target_packed_bytes: int  # weights packed for the kernels
    target_copied_bytes: int  # weights in other memory
    attention_bytes: int  # K/V caches of the whole context
    window_bytes: int  # K/V caches of sliding windows
    state_bytes: int  # recurrent state
    rewind_bytes: int  # copies of it to go back to
    compute_bytes: int
    work_bytes: int  # what the threads that compute share
    logits_bytes: int
    drafter_packed_bytes: int
    drafter_cache_bytes: int
    drafter_compute_bytes: int
    drafter_features_bytes: int  # hidden states of a prompt's batch
    checkpoint_bytes: int  # most that copies for long rewinds take besides; not in the total
    note: str  # what opening does otherwise than asked, or why it will be slow; "" for nothing
    problem: str  # why it cannot be opened, and what would help; "" if it can

    @property
    def fits(self) -> bool:
        """Whether there is as much memory as it takes."""
        return not self.problem

    @property
    def mapped_bytes(self) -> int:
        """Weights that are read from mapped files: slow unless there is room for them too."""
        return self.target_mapped_bytes + self.drafter_mapped_bytes


def plan(
    target: str | os.PathLike[str],
    drafter: str | os.PathLike[str] | None = None,
    *,
    n_ctx: int = 4096,
    n_batch: int = 512,
    n_threads: int | None = None,
    version: int | None = None,
    kernels: bool = True,
    max_bytes: int | None = None,
    cache_type_k: CacheType = "f16",
    cache_type_v: CacheType = "f16",
    swa_full: bool = True,
    **options: Unpack[SessionOptions],
) -> MemoryPlan:
    """Says what load() with the same arguments will take, without loading the weights: in the time
    of reading a vocabulary, and next to no memory.

    Raises what load() raises, but for a lack of the memory that is planned: that is the plan's
    `problem`, and load()'s OutOfMemoryError.
    """
    target_raw = target_options(
        n_ctx, n_batch, n_threads, kernels, max_bytes, cache_type_k, cache_type_v, swa_full
    )
    drafter_raw = drafter_options(version, kernels)
    session_raw, _profiles = session_options(options, None)
    paths = [encode_path(target), ffi.NULL if drafter is None else encode_path(drafter)]
    raw = sized("df2_plan")
    with native_call():
        check(
            library().df2_target_plan(raw, paths[0], target_raw, paths[1], drafter_raw, session_raw)
        )
    fields = {name: getattr(raw, name) for name in MemoryPlan.__dataclass_fields__}
    fields["kernels"] = bool(raw.kernels)
    fields["available_bytes"] = None if raw.available_bytes == 2**64 - 1 else raw.available_bytes
    fields["note"], fields["problem"] = text(raw.note), text(raw.problem)
    return MemoryPlan(**fields)
