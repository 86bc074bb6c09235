"""Memory-mapped files that are read once."""

from __future__ import annotations

import mmap


def release(data: mmap.mmap, start: int, stop: int) -> None:
    """Tell the system that the file's bytes from `start` to `stop` need not stay in memory."""
    if not hasattr(data, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    first, last = start // page * page, stop // page * page
    if last > first:
        data.madvise(mmap.MADV_DONTNEED, first, last - first)
