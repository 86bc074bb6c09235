"""ggml's tensor types by number, without the gguf package's list, which may be older than a file.

A number that is not listed here is a type too: of unknown size, and with what is known of where it
comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

# Number: name, weights in a block, bytes of a block. As in ggml.h of the llama.cpp that is used.
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

# What llama.cpp had and has no longer.
_REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_BITNET = range(36, 39)
"""bitnet.cpp uses these removed numbers for types of its own."""

# ik_llama.cpp numbers its own types from here on, and those that it has repacked from 200 on.
_IK_NUMBERS = range(97, 400)
_IK_NAMES: dict[int, str] = {
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
}

# From GGML_TYPE_COUNT on: what a later llama.cpp may define.
_FIRST_NEW = max(_TYPES) + 1

REQUANTISE = "quantise the original weights again with a current llama.cpp, or get another file"


class GgmlType(int):
    """A number that a GGUF file gives as a tensor's type; equal to the gguf package's."""

    @property
    def is_known(self) -> bool:
        """Whether it is one of llama.cpp's, whose size is known."""
        return int(self) in _TYPES

    @property
    def name(self) -> str:
        """ggml's name, or the number."""
        known = _TYPES.get(int(self))
        return known[0] if known else f"type {int(self)}"

    @property
    def block(self) -> int:
        """Weights in a block, which a row is a whole number of."""
        return _TYPES[int(self)][1]

    @property
    def block_bytes(self) -> int:
        """Size of a block."""
        return _TYPES[int(self)][2]

    def n_bytes(self, shape: Iterable[int]) -> int:
        """Size of a tensor's data."""
        return math.prod(shape) // self.block * self.block_bytes

    @property
    def origin(self) -> str:
        """What is known about a type that is not llama.cpp's (any more), in words."""
        number = int(self)
        if number in _REMOVED:
            own = ", or bitnet.cpp's own" if number in _BITNET else ""
            return f"{_REMOVED[number]}, which llama.cpp no longer has{own}"
        if number in _IK_NUMBERS:
            name = _IK_NAMES.get(number)
            return f"{name} of ik_llama.cpp" if name else "ik_llama.cpp's, most likely"
        if number >= _FIRST_NEW:
            return "unknown: another program's, or a newer llama.cpp's"
        return "unknown"

    def refusal(self, tensor: str) -> str:
        """Why a file with a tensor of this unknown type cannot be used, and what to do."""
        return (
            f"tensor {tensor!r} has type {int(self)} ({self.origin}), which llama.cpp does not "
            f"read: {REQUANTISE}"
        )


F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, I64, BF16 = map(GgmlType, (0, 1, 2, 3, 6, 7, 8, 27, 30))
