"""Who computes a model's products in a process: llama.cpp's own kernels, or ours.

That is settled before the process loads its first model, because kernels take over a model's
weights as they are read.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError

_SWITCHES = ("DF2_KERNELS", "DF2_FORCE_ISA")
_ACTIVE = 1  # DF2_KERNELS_ACTIVE


@dataclass(frozen=True, slots=True)
class Kernels:
    """Ours or llama.cpp's. ``isa`` forces one instruction set on ours."""

    name: str
    ours: bool
    isa: str | None = None

    def variables(self) -> dict[str, str]:
        """The environment of a process that uses these."""
        kept = {key: value for key, value in os.environ.items() if key not in _SWITCHES}
        if not self.ours:
            return {**kept, "DF2_KERNELS": "off"}
        return {**kept, "DF2_FORCE_ISA": self.isa} if self.isa else kept


class _Info(ctypes.Structure):
    """``df2_kernels_info`` of dflash2.h."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("state", ctypes.c_int32),
        ("isa", ctypes.c_char_p),
        ("note", ctypes.c_char_p),
        ("packed_bytes", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
    )


def state() -> dict[str, Any]:
    """Asks for our kernels in this process, and says what came of it: ``df2_kernels_info``'s
    fields.

    Through ctypes, so that DF2_LIBRARY may name a library of another version, for a comparison
    with it: the package refuses those.
    """
    import llama_cpp  # noqa: F401  (first, so that the process holds one libllama)

    path = os.environ.get("DF2_LIBRARY")
    if path is None:
        from pydflash2 import _ffi

        path = str(_ffi.library_path())
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ToolError(str(error), "reinstall pydflash2; unset DF2_LIBRARY") from error
    if not hasattr(library, "df2_kernels_enable"):
        raise ToolError(
            f"{Path(path).name} has no kernels", "reinstall pydflash2; unset DF2_LIBRARY"
        )
    library.df2_error_last.restype = ctypes.c_char_p
    info = _Info(struct_size=ctypes.sizeof(_Info))
    for status in (library.df2_kernels_enable(), library.df2_kernels_info_get(ctypes.byref(info))):
        if status < 0:
            message = library.df2_error_last().decode(errors="replace")
            raise ToolError(message, "the message says what to do")
    return {"state": info.state, "isa": info.isa.decode(), "note": info.note.decode()}


def enable() -> str:
    """Puts our kernels in front of llama.cpp's own, for the models loaded from here on.

    Returns the instruction set they use. Kernels that cannot be used are an error here.
    """
    found = state()
    if found["state"] != _ACTIVE:
        raise ToolError(
            f"the kernels are not in use: {found['note']}", "--systems stock leaves them out"
        )
    return str(found["isa"])
