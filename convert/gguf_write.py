"""A streaming GGUF writer: header first, then one tensor after the other, in any number of pieces.

The header is known before the first weight is read, so nothing is buffered, and equal input gives
equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from gguf.constants import GGUFValueType

from .ggml_types import GgmlType

ALIGNMENT = 32
_FORMATS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}

Scalar = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Metadata:
    """One metadata entry, its value already in GGUF's byte form (without the leading type tag)."""

    key: str
    kind: GGUFValueType
    raw: bytes
    shown: str  # for tables: the value, shortened


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor to come: `shape` innermost first, as ggml counts."""

    name: str
    shape: tuple[int, ...]
    kind: GgmlType

    @property
    def n_bytes(self) -> int:
        """Size of the data, without padding."""
        return self.kind.n_bytes(self.shape)


def _pack(kind: GGUFValueType, value: Scalar) -> bytes:
    if kind is GGUFValueType.STRING:
        text = str(value).encode("utf-8")
        return struct.pack("<Q", len(text)) + text
    return struct.pack(_FORMATS[kind], value)


def scalar(key: str, kind: GGUFValueType, value: Scalar) -> Metadata:
    """A metadata entry with one value.

    Raises `struct.error` when the value does not fit the type.
    """
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return Metadata(key, kind, _pack(kind, value), shown)


def array(key: str, element: GGUFValueType, values: Sequence[Scalar]) -> Metadata:
    """A metadata entry with an array of values.

    Raises `struct.error` when one does not fit the type.
    """
    head = struct.pack("<IQ", element, len(values))
    raw = head + b"".join(_pack(element, value) for value in values)
    shown = str(list(values)) if len(values) <= 8 else f"{len(values)} x {element.name.lower()}"
    return Metadata(key, GGUFValueType.ARRAY, raw, shown)


def padding(n_bytes: int) -> bytes:
    """The zero bytes that follow `n_bytes` of data up to the next aligned position."""
    return b"\0" * (-n_bytes % ALIGNMENT)


def write_header(
    file: BinaryIO, metadata: Sequence[Metadata], tensors: Sequence[TensorHeader]
) -> None:
    """Write everything up to the tensor data, which must follow in order, each with `padding`."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for entry in metadata:
        parts += [_pack(GGUFValueType.STRING, entry.key), struct.pack("<I", entry.kind), entry.raw]
    offset = 0
    for tensor in tensors:
        n_dims = len(tensor.shape)
        parts.append(_pack(GGUFValueType.STRING, tensor.name))
        parts.append(struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, int(tensor.kind), offset))
        offset += tensor.n_bytes + len(padding(tensor.n_bytes))
    header = b"".join(parts)
    file.write(header + padding(len(header)))
