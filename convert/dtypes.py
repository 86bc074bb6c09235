"""The element types of safetensors files, and their values as float32."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

# NumPy has no such types: BF16 is read as 16-bit and the 8-bit floats as 8-bit patterns.
_READ_AS: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_BITS: dict[str, int] = {
    **{name: 8 * np.dtype(read_as).itemsize for name, read_as in _READ_AS.items()},
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
SCALED_DTYPES = frozenset({"F8_E4M3", "F8_E5M2"})
"""Weights of these types are to be multiplied with scales."""
SCALE_DTYPES = frozenset({"F32", "F16", "BF16", "F8_E8M0"})


def _e4m3() -> npt.NDArray[np.float32]:
    """A sign, 4 bits of exponent, 3 of mantissa; no infinity, and one NaN of either sign."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7) / 8
    sizes = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    sizes[codes & 127 == 127] = np.nan
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


def _e5m2() -> npt.NDArray[np.float32]:
    """The upper half of a half-precision number."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def _e8m0() -> npt.NDArray[np.float32]:
    """A power of two."""
    values = 2.0 ** (np.arange(256) - 127.0)
    values[255] = np.nan
    return values.astype(np.float32)


_TABLES = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2(), "F8_E8M0": _e8m0()}


def n_bytes(dtype: str, shape: Iterable[int]) -> int | None:
    """Size of a tensor's data; None for a type that is not known."""
    bits = _BITS.get(dtype)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


def numpy_dtype(dtype: str) -> npt.DTypeLike:
    """What elements are read as."""
    return np.dtype(_READ_AS[dtype])


def to_float32(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Stored elements (see `Shard.array`) as float32, in the same shape.

    Exact for all but F64.
    """
    if dtype in _TABLES:
        decoded: npt.NDArray[np.float32] = _TABLES[dtype][values]
        return decoded
    if dtype == "BF16":
        wide = values.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)
