"""ggml's quantised weights: made by ggml itself, taken apart here.

A block of 32 weights is `codes * scale + minimum`, with a scale for each half of the block. Written
from the description of the formats, and only ever used after `check_parts` has compared it with
what ggml makes of the same bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import llama_cpp  # noqa: F401  (loads ggml's libraries)
import llama_cpp._ggml as ggml
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int32]

_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32
)
_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)


@dataclass(frozen=True, slots=True)
class Parts:
    """A matrix taken apart. codes [n_out, n_in]; scales [n_out, n_in / 16]; minima
    [n_out, n_in / 32], none for types without."""

    codes: Codes
    scales: Floats
    minima: Floats | None


@dataclass(frozen=True, slots=True)
class WeightType:
    """ggml's number of a type, weights and bytes of one of its blocks, and how to take blocks
    apart: [n, bytes] becomes codes [n, weights], scales [n, weights / 16], minima or none."""

    number: int
    n_weights: int
    n_bytes: int
    parts: Callable[[Bytes], tuple[Codes, Floats, Floats | None]]
    has_halves: bool = False


def _f16(blocks: Bytes, at: int) -> Floats:
    values = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)
    return values.astype(np.float32)


def _nibbles(packed: Bytes, group: int) -> Codes:
    """Per `group` bytes: their low nibbles, then their high ones."""
    split = packed.reshape(len(packed), -1, 1, group)
    both = np.concatenate([split & 15, split >> 4], axis=2)
    return both.reshape(len(packed), -1).astype(np.int32)


def _bits(packed: Bytes) -> Codes:
    """Little-endian bits."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.int32)


def _q4_0(blocks: Bytes) -> tuple[Codes, Floats, None]:
    return _nibbles(blocks[:, 2:], 16) - 8, _f16(blocks, 0).repeat(2, 1), None


def _q4_1(blocks: Bytes) -> tuple[Codes, Floats, Floats]:
    return _nibbles(blocks[:, 4:], 16), _f16(blocks, 0).repeat(2, 1), _f16(blocks, 2)


def _q5_0(blocks: Bytes) -> tuple[Codes, Floats, None]:
    codes = _nibbles(blocks[:, 6:], 16) + 16 * _bits(blocks[:, 2:6]) - 16
    return codes, _f16(blocks, 0).repeat(2, 1), None


def _q5_1(blocks: Bytes) -> tuple[Codes, Floats, Floats]:
    codes = _nibbles(blocks[:, 8:], 16) + 16 * _bits(blocks[:, 4:8])
    return codes, _f16(blocks, 0).repeat(2, 1), _f16(blocks, 2)


def _q8_0(blocks: Bytes) -> tuple[Codes, Floats, None]:
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.int32)
    return codes, _f16(blocks, 0).repeat(2, 1), None


def _k_factors(packed: Bytes) -> tuple[Codes, Codes]:
    """Eight 6-bit scales and minima out of 12 bytes."""
    first, second, third = (packed[:, i : i + 4].astype(np.int32) for i in (0, 4, 8))
    scales = [first & 63, third & 15 | first >> 6 << 4]
    minima = [second & 63, third >> 4 | second >> 6 << 4]
    return np.concatenate(scales, 1), np.concatenate(minima, 1)


def _k_scaled(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, minima = _k_factors(blocks[:, 4:16])
    return (
        (_f16(blocks, 0) * scales.astype(np.float32)).repeat(2, 1),
        -_f16(blocks, 2) * minima.astype(np.float32),
    )


def _q4_k(blocks: Bytes) -> tuple[Codes, Floats, Floats]:
    return _nibbles(blocks[:, 16:], 32), *_k_scaled(blocks)


def _q5_k(blocks: Bytes) -> tuple[Codes, Floats, Floats]:
    # bit b of byte i belongs to weight i of block b
    fifth = _bits(blocks[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    return _nibbles(blocks[:, 48:], 32) + 16 * fifth, *_k_scaled(blocks)


def _pairs(packed: Bytes) -> Codes:
    """Per 32 bytes: their lowest bit pairs, then the next ones, four times."""
    split = packed.reshape(len(packed), -1, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (split >> shifts & 3).reshape(len(packed), -1).astype(np.int32)


def _q3_k(blocks: Bytes) -> tuple[Codes, Floats, None]:
    third = _bits(blocks[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    codes = _pairs(blocks[:, 32:96]) + 4 * third - 4
    lower = blocks[:, 96:104]
    upper = blocks[:, 104:108]
    low = np.concatenate([lower & 15, lower >> 4], 1)
    high = np.concatenate([upper >> shift & 3 for shift in (0, 2, 4, 6)], 1)
    factors = low.astype(np.int32) + 16 * high.astype(np.int32) - 32
    return codes, _f16(blocks, 108) * factors.astype(np.float32), None


def _q6_k(blocks: Bytes) -> tuple[Codes, Floats, None]:
    codes = _nibbles(blocks[:, :128], 64) + 16 * _pairs(blocks[:, 128:192]) - 32
    factors = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, _f16(blocks, 208) * factors, None


def _iq4_nl(blocks: Bytes) -> tuple[Codes, Floats, None]:
    return _IQ4[_nibbles(blocks[:, 2:], 16)], _f16(blocks, 0).repeat(2, 1), None


def _iq4_xs(blocks: Bytes) -> tuple[Codes, Floats, None]:
    lower = _nibbles(blocks[:, 4:8], 1)
    upper = np.concatenate([blocks[:, 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], 1)
    # bits 2 b of the two bytes together: block b's
    upper = upper.reshape(-1, 4, 2).transpose(0, 2, 1).reshape(-1, 8)
    factors = lower + 16 * upper.astype(np.int32) - 32
    scales = (_f16(blocks, 0) * factors.astype(np.float32)).repeat(2, 1)
    return _IQ4[_nibbles(blocks[:, 8:], 16)], scales, None


def _mxfp4(blocks: Bytes) -> tuple[Codes, Floats, None]:
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).repeat(2, 1)
    return _MXFP4[_nibbles(blocks[:, 1:], 16)], scales, None


WEIGHT_TYPES = {
    "q4_0": WeightType(2, 32, 18, _q4_0),
    "q4_1": WeightType(3, 32, 20, _q4_1),
    "q5_0": WeightType(6, 32, 22, _q5_0),
    "q5_1": WeightType(7, 32, 24, _q5_1),
    "q8_0": WeightType(8, 32, 34, _q8_0),
    "q3_K": WeightType(11, 256, 110, _q3_k, has_halves=True),
    "q4_K": WeightType(12, 256, 144, _q4_k),
    "q5_K": WeightType(13, 256, 176, _q5_k),
    "q6_K": WeightType(14, 256, 210, _q6_k, has_halves=True),
    "iq4_nl": WeightType(20, 32, 18, _iq4_nl),
    "iq4_xs": WeightType(23, 256, 136, _iq4_xs),
    "mxfp4": WeightType(39, 32, 17, _mxfp4),
}


def quantise(name: str, weights: Floats) -> Bytes:
    """The weights [n_out, n_in] as ggml quantises them: rows of bytes."""
    kind = WEIGHT_TYPES[name]
    n_out, n_in = weights.shape
    rows = np.empty((n_out, n_in // kind.n_weights * kind.n_bytes), np.uint8)
    weights = np.ascontiguousarray(weights, np.float32)
    function = ggml.libggml.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    written = function(kind.number, weights.ctypes.data, rows.ctypes.data, 0, n_out, n_in, None)
    assert written == rows.nbytes
    return rows


def dequantise(name: str, rows: Bytes) -> Floats:
    """What ggml takes the bytes for."""
    kind = WEIGHT_TYPES[name]
    weights = np.empty((len(rows), rows.shape[1] // kind.n_bytes * kind.n_weights), np.float32)
    function = getattr(ggml.libggml, f"dequantize_row_{name}")
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(np.ascontiguousarray(rows).ctypes.data, weights.ctypes.data, weights.size)
    return weights


def take_apart(name: str, rows: Bytes) -> Parts:
    """Codes, scales and minima of rows of bytes."""
    kind = WEIGHT_TYPES[name]
    n_out = len(rows)
    codes, scales, minima = kind.parts(rows.reshape(-1, kind.n_bytes))
    return Parts(
        codes.reshape(n_out, -1),
        scales.reshape(n_out, -1),
        None if minima is None else minima.reshape(n_out, -1),
    )


def put_together(parts: Parts) -> npt.NDArray[np.float64]:
    """The weights that the parts stand for."""
    weights = parts.codes * parts.scales.astype(np.float64).repeat(16, 1)
    if parts.minima is not None:
        weights += parts.minima.astype(np.float64).repeat(32, 1)
    return weights
