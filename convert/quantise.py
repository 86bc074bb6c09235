"""Output types: which tensor gets which, how rows become bytes, and the check that they still say
the same.

For f32, f16, bf16 and q8_0 the choice of types is upstream llama.cpp's. The 4- and 5-bit types have
no counterpart in its converter; there the convolution projections and the selector's hidden
projection, small and sensitive, and a drafter's own embeddings or head stay at Q8_0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGMLQuantizationType, LlamaFileType

from .errors import ConversionError
from .ggml_types import BF16, F16, F32, I64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, GgmlType


@dataclass(frozen=True, slots=True)
class OutType:
    """One choice of `--outtype`.

    The type of large tensors and the number written as `general.file_type`.
    """

    name: str
    kind: GgmlType
    file_type: int


OUTTYPES: dict[str, OutType] = {
    out.name: out
    for out in (
        OutType("f32", F32, LlamaFileType.ALL_F32),
        OutType("f16", F16, LlamaFileType.MOSTLY_F16),
        OutType("bf16", BF16, LlamaFileType.MOSTLY_BF16),
        OutType("q8_0", Q8_0, LlamaFileType.MOSTLY_Q8_0),
        OutType("q5_1", Q5_1, LlamaFileType.MOSTLY_Q5_1),
        OutType("q5_0", Q5_0, LlamaFileType.MOSTLY_Q5_0),
        OutType("q4_1", Q4_1, LlamaFileType.MOSTLY_Q4_1),
        OutType("q4_0", Q4_0, LlamaFileType.MOSTLY_Q4_0),
    )
}

# Largest root-mean-square error relative to the tensor's own root mean square. Exact types allow
# rounding only; for block types the bound is what a block with one dominant value can lose at worst
# (the quantisation step over sqrt(12), times sqrt(32) values), so passing weights never fail and
# scrambled ones always do.
_MAX_ERROR: dict[GgmlType, float] = {
    F32: 0.0,
    I64: 0.0,
    F16: 1e-3,
    BF16: 4e-3,
    Q8_0: 0.02,
    Q5_1: 0.12,
    Q5_0: 0.13,
    Q4_1: 0.25,
    Q4_0: 0.25,
}
_SMALL_KINDS = frozenset({Q4_0, Q4_1, Q5_0, Q5_1})
_SENSITIVE = ("conv_proj.weight", "selector_hidden.weight")
_OWN_VOCABULARY = ("token_embd.weight", "output.weight")


def choose_kind(name: str, shape: tuple[int, ...], outtype: OutType) -> tuple[GgmlType, str]:
    """The type of one tensor, and a note when it is not the plain `outtype`.

    `name` is the GGUF name, `shape` the HF shape (outermost first). Norms, one-dimensional tensors
    and tensors without a `.weight` suffix (the convolution bases) stay F32, rows that do not divide
    into blocks become F16: both as upstream does.
    """
    if len(shape) <= 1 or name.endswith("_norm.weight") or not name.endswith(".weight"):
        return F32, "" if outtype.kind == F32 else "kept F32"
    kind, note = outtype.kind, ""
    if kind in _SMALL_KINDS and (name.endswith(_SENSITIVE) or name in _OWN_VOCABULARY):
        kind, note = Q8_0, "kept Q8_0"
    block = kind.block
    if kind != BF16 and shape[-1] % block != 0:
        return (
            F16,
            f"F16: rows of {shape[-1]} do not divide into {kind.name} blocks of {block}",
        )
    return kind, note


def _sum_of_squares(values: npt.NDArray[np.float32]) -> float:
    """In single precision, which is fast, unless its range is not enough."""
    flat = values.reshape(-1)
    quick = float(np.dot(flat, flat))
    if 1e-30 < quick < 1e30:
        return quick
    return float(np.square(flat, dtype=np.float64).sum())


class ErrorMeter:
    """Collects, piece by piece, how far a tensor's written bytes are from its source values."""

    def __init__(self, name: str, kind: GgmlType) -> None:
        self.name = name
        self.kind = kind
        self._signal = 0.0
        self._noise = 0.0

    def encode(self, rows: npt.NDArray[np.float32]) -> bytes:
        """Quantise rows, [n, row length] float32, and add the result's error to the account.

        Raises `ConversionError` when a value is NaN or infinite.
        """
        if not np.isfinite(rows).all():
            raise ConversionError(
                f"tensor {self.name!r} holds NaN or infinite values: the checkpoint is damaged "
                "or its "
                "training diverged. Download it again."
            )
        kind = GGMLQuantizationType(self.kind)
        with np.errstate(all="ignore"):  # overflow to infinity is caught by the meter below
            packed: npt.NDArray[Any] = np.ascontiguousarray(quants.quantize(rows, kind))
            if self.kind != F32:
                back = quants.dequantize(packed, kind).reshape(rows.shape)
                self._noise += _sum_of_squares(back - rows)
                self._signal += _sum_of_squares(rows)
        return packed.tobytes()

    def finish(self) -> float:
        """The relative error of the whole tensor.

        Raises `ConversionError` when it is out of bounds.
        """
        error = math.sqrt(self._noise / self._signal) if self._signal else self._noise
        allowed = _MAX_ERROR.get(self.kind, 0.0)  # other types are never made, only copied
        if not error <= allowed:
            remedy = (
                "some values do not fit 16-bit floats: use --outtype bf16 or f32"
                if self.kind == F16
                else "use a larger --outtype, and report this checkpoint"
            )
            raise ConversionError(
                f"self-test: tensor {self.name!r} read back from {self.kind.name} is off by "
                f"{error:.3g} "
                f"of its size, allowed are {allowed:.3g}; {remedy}"
            )
        return error
