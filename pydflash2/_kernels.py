"""The kernels of libdflash2 inside llama.cpp: which ones run, and how much memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydflash2._ffi import check, ffi, library, text
from pydflash2.errors import InvalidArgumentError

KernelState = Literal["unknown", "active", "late", "disabled", "unsupported", "failed"]


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """How matrix products and attention are computed in this process.

    state        "active": by libdflash2's kernels, in every model loaded from now on. "late": the
                 same, but weights are packed in drafters only, because llama.cpp had loaded a model
                 before. Otherwise by llama.cpp's own: "disabled" (by DF2_KERNELS=off),
                 "unsupported" (none for this processor), "failed" (their self-test)
    isa          the instruction set in use, such as "avx512"; "" if none
    note         why they are not in use, or not for all weights; "" if they are
    packed_bytes weights packed for them, of all models in memory
    copied_bytes how much of that is a second copy, of embeddings that are also the head
    """

    state: KernelState
    isa: str
    note: str
    packed_bytes: int
    copied_bytes: int


def enable_kernels() -> KernelInfo:
    """Makes the kernels known to llama.cpp and says what came of it. Again only says it.

    Whatever else uses the native library first does this too. Needed only to have them in a
    llama_cpp.Llama: call it before the process loads its first model, and while no other thread
    computes with llama.cpp, whose threads read without a lock what this changes. Raises
    InvalidArgumentError or UnsupportedError if DF2_KERNELS or DF2_FORCE_ISA asks for what cannot
    be.
    """
    lib = library()
    check(lib.df2_kernels_enable())
    raw = ffi.new("df2_kernels_info *")
    raw.struct_size = ffi.sizeof("df2_kernels_info")
    check(lib.df2_kernels_info_get(raw))
    return KernelInfo(
        state=_states()[raw.state],
        isa=text(raw.isa),
        note=text(raw.note),
        packed_bytes=raw.packed_bytes,
        copied_bytes=raw.copied_bytes,
    )


def _states() -> dict[int, Any]:
    names = ffi.typeof("df2_kernels_state").relements
    return {value: name.removeprefix("DF2_KERNELS_").lower() for name, value in names.items()}


def kernels_option(wanted: bool) -> int:
    """A df2_kernels. InvalidArgumentError if wanted is not a bool."""
    if not isinstance(wanted, bool):
        raise InvalidArgumentError(f"kernels must be True or False, not {wanted!r}")
    names = ffi.typeof("df2_kernels").relements
    return int(names["DF2_KERNELS_DEFAULT" if wanted else "DF2_KERNELS_OFF"])
