"""Files that are read once: by memory map, or where that is refused as a whole."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO

_PIECE = 1 << 24


class FileBytes:
    """A file's bytes, as `data`. The file may be closed while they are used."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._is_mapped = True
        except OSError:  # some network and user-space file systems cannot map files
            self.data = _read(file)
            self._is_mapped = False

    def close(self) -> None:
        """Give them up; calling it again does nothing."""
        self.data.close()

    def release(self, start: int, stop: int) -> None:
        """Tell the system that the bytes from `start` to `stop` need not stay in memory."""
        if not self._is_mapped or not hasattr(mmap, "MADV_DONTNEED"):
            return
        page = mmap.PAGESIZE
        first, last = start // page * page, stop // page * page
        if last > first:
            self.data.madvise(mmap.MADV_DONTNEED, first, last - first)


def _read(file: BinaryIO) -> mmap.mmap:
    size = os.fstat(file.fileno()).st_size
    memory = mmap.mmap(-1, size)
    file.seek(0)
    while memory.tell() < size:
        piece = file.read(min(_PIECE, size - memory.tell()))
        if not piece:
            raise OSError(0, "the file ends before its size says", file.name)
        memory.write(piece)
    return memory
