"""A bounds-checked reader of GGUF headers.

Every count, length and offset is compared with the file's size before it is used, so a truncated or
hostile file costs no more memory or time than its own size and ends in a `FormatError`. Values stay
in the mapped file until they are asked for; `raw_value` hands them on byte for byte.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from .errors import FormatError
from .file_kinds import HEAD_BYTES, not_a_file, unfinished, wrong_kind
from .ggml_types import GgmlType
from .pages import FileBytes

_SCALARS: dict[int, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_NUMPY: dict[int, str] = {
    kind: "?" if kind == GGUFValueType.BOOL else layout.format for kind, layout in _SCALARS.items()
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Far above any real model, low enough that walking a hostile file ends within seconds.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_ELEMENTS = 1 << 24
_MAX_KEY_BYTES = 1 << 16
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class Value:
    """Where one metadata value lies: its type, and its bytes without the type tag."""

    kind: GGUFValueType
    start: int
    stop: int
    element: GGUFValueType | None = None  # arrays: the element type
    count: int = 1  # arrays: the number of elements


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `shape` innermost first, `offset` in bytes from the start of the file.

    The size of a type that is not known is taken to reach up to the next tensor.
    """

    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    offset: int
    n_bytes: int


class _Cursor:
    """A position in the mapped file that cannot leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def fail(self, what: str) -> FormatError:
        return FormatError(
            f"{self.path}: {what} at byte {self.at}. The file is damaged or incomplete"
            f"{unfinished(self.path)}: download or convert it again."
        )

    def skip(self, n_bytes: int, what: str) -> int:
        """Move over `n_bytes` and return where they began."""
        if n_bytes > len(self.data) - self.at:
            raise self.fail(f"the file ends inside {what} ({n_bytes} bytes announced)")
        start = self.at
        self.at += n_bytes
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.skip(8, what))[0])

    def name(self, what: str) -> str:
        n_bytes = self.u64(what)
        if n_bytes > _MAX_KEY_BYTES:
            raise self.fail(f"{what} claims {n_bytes} bytes")
        start = self.skip(n_bytes, what)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None


class GgufFile:
    """The header of one GGUF file, checked as a whole when opened.

    Use as a context manager, or call `close()`. Raises `FormatError` when the file is not a
    well-formed little-endian GGUF version 2 or 3, and `OSError` when it cannot be read at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        problem = not_a_file(path)
        if problem:
            raise FormatError(f"{path}: {problem}")
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self._check_magic(file.read(HEAD_BYTES))
            self._bytes = FileBytes(file)
        self._data = self._bytes.data
        try:
            self._parse()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file; calling it again does nothing."""
        self._bytes.close()

    def _check_magic(self, head: bytes) -> None:
        if self.size == 0:
            raise FormatError(f"{self.path}: the file is empty: download it again")
        if not head.startswith(b"GGUF"):
            kind = wrong_kind(head, self.size) or f"it begins with {head[:4]!r}"
            raise FormatError(f"{self.path}: not a GGUF file but {kind}{unfinished(self.path)}")
        if self.size < 24:
            raise FormatError(
                f"{self.path}: {self.size} bytes are too few for a GGUF file"
                f"{unfinished(self.path)}: download it again"
            )

    def _check_version(self) -> None:
        if self.version in (2, 3):
            return
        if self.version & 0xFFFF == 0:
            raise FormatError(
                f"{self.path}: a GGUF file in big-endian byte order, which only big-endian "
                "machines read: get the usual little-endian file, or convert this one "
                "(gguf-convert-endian)"
            )
        raise FormatError(
            f"{self.path}: GGUF version {self.version} is "
            + (
                "no longer supported: convert the model again with a current llama.cpp"
                if self.version < 2
                else "newer than this program, or the file is damaged: update pydflash2, or get "
                "another file"
            )
        )

    def _parse(self) -> None:
        cursor = _Cursor(self._data, self.path)
        cursor.at = 4
        self.version = cursor.u32("the version")
        self._check_version()
        n_tensors = cursor.u64("the tensor count")
        n_keys = cursor.u64("the key count")
        # The smallest key takes 13 bytes, the smallest tensor entry 32.
        if n_keys > min(_MAX_KEYS, self.size // 13):
            raise cursor.fail(f"{n_keys} metadata keys announced in a file of {self.size} bytes")
        if n_tensors > min(_MAX_TENSORS, self.size // 32):
            raise cursor.fail(f"{n_tensors} tensors announced in a file of {self.size} bytes")
        self.values: dict[str, Value] = {}
        for _ in range(n_keys):
            key = cursor.name("a metadata key")
            if key in self.values:
                raise cursor.fail(f"metadata key {key!r} occurs twice")
            self.values[key] = self._parse_value(cursor, key)
        self._parse_tensors(cursor, n_tensors)

    def _parse_value(self, cursor: _Cursor, key: str) -> Value:
        kind = self._kind(cursor, cursor.u32(f"the type of {key!r}"), key)
        if kind is GGUFValueType.ARRAY:
            element = self._kind(cursor, cursor.u32(f"the element type of {key!r}"), key)
            if element is GGUFValueType.ARRAY:
                raise cursor.fail(f"{key!r} is an array of arrays, which GGUF models do not use")
            start = cursor.at - 4
            count = cursor.u64(f"the length of {key!r}")
            if count > _MAX_ELEMENTS:
                raise cursor.fail(f"{key!r} claims {count} elements")
            if element is GGUFValueType.STRING:
                if count * 8 > self.size - cursor.at:
                    raise cursor.fail(
                        f"{key!r} claims {count} strings, more than the file can hold"
                    )
                for _ in range(count):
                    cursor.skip(cursor.u64(f"a string of {key!r}"), f"a string of {key!r}")
            else:
                cursor.skip(count * _SCALARS[element].size, f"the array {key!r}")
            return Value(kind, start, cursor.at, element, count)
        if kind is GGUFValueType.STRING:
            start = cursor.at
            cursor.skip(cursor.u64(f"the length of {key!r}"), f"the string {key!r}")
        else:
            start = cursor.skip(_SCALARS[kind].size, f"the value of {key!r}")
        return Value(kind, start, cursor.at)

    @staticmethod
    def _kind(cursor: _Cursor, number: int, key: str) -> GGUFValueType:
        try:
            return GGUFValueType(number)
        except ValueError:
            raise cursor.fail(f"metadata key {key!r} has the unknown type {number}") from None

    def _parse_tensors(self, cursor: _Cursor, n_tensors: int) -> None:
        entries: dict[str, tuple[tuple[int, ...], GgmlType, int]] = {}
        for _ in range(n_tensors):
            name = cursor.name("a tensor name")
            if name in entries:
                raise cursor.fail(f"tensor {name!r} occurs twice")
            n_dims = cursor.u32(f"the rank of {name!r}")
            if n_dims > _MAX_DIMS:
                raise cursor.fail(f"tensor {name!r} claims {n_dims} dimensions")
            shape = tuple(cursor.u64(f"the shape of {name!r}") for _ in range(n_dims))
            kind = GgmlType(cursor.u32(f"the type of {name!r}"))
            if kind.is_known and (shape[0] if shape else 1) % kind.block != 0:
                raise cursor.fail(
                    f"rows of tensor {name!r} ({shape}) do not divide into {kind.name} blocks"
                )
            entries[name] = (shape, kind, cursor.u64(f"the offset of {name!r}"))
        self._place_tensors(cursor, entries)

    def _place_tensors(
        self, cursor: _Cursor, entries: dict[str, tuple[tuple[int, ...], GgmlType, int]]
    ) -> None:
        """Make relative offsets absolute; refuse those that overlap or leave the file."""
        alignment = self._alignment(cursor)
        base = (cursor.at + alignment - 1) // alignment * alignment
        self.tensors: dict[str, TensorEntry] = {}
        used = base
        in_order = sorted(entries.items(), key=lambda entry: entry[1][2])
        ends = [*(base + offset for _, (_, _, offset) in in_order[1:]), self.size]
        for (name, (shape, kind, offset)), end in zip(in_order, ends, strict=False):
            start = base + offset
            n_bytes = kind.n_bytes(shape) if kind.is_known else max(0, end - start)
            if offset % alignment != 0:
                raise cursor.fail(f"tensor {name!r} is not aligned to {alignment} bytes")
            if start < used:
                raise cursor.fail(f"tensor {name!r} overlaps the one before it")
            if start > self.size or n_bytes > self.size - start:
                raise FormatError(
                    f"{self.path}: tensor {name!r} ends at byte {start + n_bytes}, the file at "
                    f"{self.size}. The file is incomplete{unfinished(self.path)}: download or "
                    "convert it again."
                )
            used = start + n_bytes
            self.tensors[name] = TensorEntry(name, shape, kind, start, n_bytes)

    def _alignment(self, cursor: _Cursor) -> int:
        value = self.values.get("general.alignment")
        if value is None:
            return 32
        alignment = self.get("general.alignment")
        if (
            value.kind is not GGUFValueType.UINT32
            or not 8 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise cursor.fail(f"general.alignment is {alignment!r}; noticed")
        return int(alignment)

    def raw_value(self, key: str) -> bytes:
        """The value's bytes as they stand in the file, without the leading type tag."""
        value = self.values[key]
        return self._data[value.start : value.stop]

    def get(self, key: str, default: Any = None) -> Any:
        """The value as a Python object (arrays as lists), or `default` when absent."""
        value = self.values.get(key)
        if value is None:
            return default
        if value.kind is GGUFValueType.STRING:
            return self._text(value.start)[0]
        if value.kind is not GGUFValueType.ARRAY:
            return _SCALARS[value.kind].unpack_from(self._data, value.start)[0]
        assert value.element is not None
        if value.element is GGUFValueType.STRING:
            return list(self._strings(value))
        dtype = np.dtype(_NUMPY[value.element])
        flat = np.frombuffer(self._data[value.start + 12 : value.stop], dtype)
        return flat.tolist()

    def _text(self, start: int) -> tuple[str, int]:
        (n_bytes,) = _U64.unpack_from(self._data, start)
        stop = start + 8 + n_bytes
        # Vocabularies hold pieces of multi-byte characters in some models.
        return self._data[start + 8 : stop].decode("utf-8", errors="replace"), stop

    def _strings(self, value: Value) -> Iterator[str]:
        at = value.start + 12
        for _ in range(value.count):
            text, at = self._text(at)
            yield text

    @property
    def foreign_type(self) -> str:
        """Why llama.cpp does not read this file, if a tensor is of a type that it does not have."""
        for name, entry in self.tensors.items():
            if not entry.kind.is_known:
                return entry.kind.refusal(name)
        return ""

    def tensor_bytes(self, name: str) -> bytes:
        """The bytes of one tensor."""
        entry = self.tensors[name]
        return self._data[entry.offset : entry.offset + entry.n_bytes]

    def row_bytes(self, name: str, rows: Iterable[int]) -> bytes:
        """The bytes of some rows of a matrix, in the order asked for."""
        entry = self.tensors[name]
        if not entry.kind.is_known:
            raise FormatError(f"{self.path}: {entry.kind.refusal(name)}")
        size = entry.n_bytes // entry.shape[1]
        starts = [entry.offset + row * size for row in rows]
        data = b"".join(self._data[start : start + size] for start in starts)
        self._bytes.release(entry.offset, entry.offset + entry.n_bytes)
        return data
