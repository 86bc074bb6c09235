"""pydflash2: DFlash2 speculative decoding for GGUF models. The text stays the model's own.

    import pydflash2

    with pydflash2.load("target.gguf", "drafter.gguf") as llm:
        print(llm.generate("The capital of France is").text)

Names are imported on first use, so that `pydflash2.convert` needs neither llama.cpp nor the native
library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pydflash2._bundle import demo_pair
    from pydflash2._generation import Chunk, Piece
    from pydflash2._kernels import KernelInfo, enable_kernels
    from pydflash2._llama import Completion, Llama, attach, load
    from pydflash2._options import GenerateOptions, SessionOptions
    from pydflash2._plan import MemoryPlan, plan
    from pydflash2._session import Draft, Drafter, DrafterInfo, Session, Stats, Step, Target
    from pydflash2.errors import (
        BackendError,
        ContextFullError,
        Dflash2Error,
        InvalidArgumentError,
        MismatchError,
        ModelFileError,
        ModelFormatError,
        OutOfMemoryError,
        PoisonedError,
        RewindError,
        UnsupportedError,
    )

_HOMES = {
    "pydflash2._llama": ("Completion", "Llama", "attach", "load"),
    "pydflash2._bundle": ("demo_pair",),
    "pydflash2._generation": ("Chunk", "Piece"),
    "pydflash2._kernels": ("KernelInfo", "enable_kernels"),
    "pydflash2._options": ("GenerateOptions", "SessionOptions"),
    "pydflash2._plan": ("MemoryPlan", "plan"),
    "pydflash2._session": (
        "Draft",
        "Drafter",
        "DrafterInfo",
        "Session",
        "Stats",
        "Step",
        "Target",
    ),
    "pydflash2.errors": (
        "BackendError",
        "ContextFullError",
        "Dflash2Error",
        "InvalidArgumentError",
        "MismatchError",
        "ModelFileError",
        "ModelFormatError",
        "OutOfMemoryError",
        "PoisonedError",
        "RewindError",
        "UnsupportedError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BackendError",
    "Chunk",
    "Completion",
    "ContextFullError",
    "Dflash2Error",
    "Draft",
    "Drafter",
    "DrafterInfo",
    "GenerateOptions",
    "InvalidArgumentError",
    "KernelInfo",
    "Llama",
    "MemoryPlan",
    "MismatchError",
    "ModelFileError",
    "ModelFormatError",
    "OutOfMemoryError",
    "Piece",
    "PoisonedError",
    "RewindError",
    "Session",
    "SessionOptions",
    "Stats",
    "Step",
    "Target",
    "UnsupportedError",
    "__version__",
    "attach",
    "demo_pair",
    "enable_kernels",
    "load",
    "plan",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
