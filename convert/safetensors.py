"""Safetensors files by memory map: one file, or shards that an index names.

The format is a little-endian u64 header length, a JSON header and the tensors' bytes. Everything
the header says is compared with the file before it is used; weights are read in pieces, and the
pages they came from are handed back to the system, so the size of a checkpoint does not show in the
memory used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import n_bytes, numpy_dtype
from .errors import ConversionError, FormatError
from .file_kinds import HEAD_BYTES, not_a_file, unfinished, wrong_kind
from .pages import FileBytes

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000
_MAX_JSON_BYTES = 64_000_000
_MAX_DIMS = 8


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises `FormatError` when it is missing, not JSON or not an object.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise FormatError(f"{path}: {what} is larger than {_MAX_JSON_BYTES} bytes")
        data = path.read_bytes()
        value = json.loads(data)
    except FormatError:
        raise
    except FileNotFoundError:
        reason = not_a_file(path)
        detail = f" ({reason})" if path.is_symlink() else ""
        raise FormatError(
            f"{path}: {what} is missing{detail}. Is this a complete model folder?"
        ) from None
    except (ValueError, RecursionError) as error:
        kind = wrong_kind(data[:HEAD_BYTES], len(data))
        is_json = data.lstrip()[:1] in (b"{", b"[")
        reason = kind if kind and not is_json else str(error)
        raise FormatError(
            f"{path}: {what} is not valid JSON ({reason}){unfinished(path)}. Download it again."
        ) from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: {what} is not a JSON object")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor: HF shape (outermost first), dtype name, its bytes' place in the shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Shard:
    """One mapped safetensors file.

    Raises `FormatError` on opening when the header does not hold together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        problem = not_a_file(path)
        if problem:
            raise FormatError(f"{path}: {problem}")
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size < 8:
                    raise self._error(f"{self.size} bytes are too few")
                self._bytes = FileBytes(file)
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error.strerror})") from None
        self._data = self._bytes.data
        try:
            self.tensors = self._parse()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the file, now or when the last view of it is gone; may be called again."""
        with contextlib.suppress(BufferError):
            self._bytes.close()

    def _error(self, what: str) -> FormatError:
        return FormatError(
            f"{self.path}: bad safetensors file: {what}{unfinished(self.path)}. Download it again."
        )

    def _parse(self) -> dict[str, TensorInfo]:
        (n_header,) = struct.unpack_from("<Q", self._data, 0)
        if n_header > min(self.size - 8, _MAX_HEADER_BYTES):
            kind = wrong_kind(self._data[:HEAD_BYTES], self.size)
            if kind:
                raise FormatError(f"{self.path}: not a safetensors file but {kind}")
            raise self._error(f"a header of {n_header} bytes in a file of {self.size}")
        try:
            header = json.loads(self._data[8 : 8 + n_header], object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise self._error(f"the header is not valid JSON ({error})") from None
        if not isinstance(header, dict):
            raise self._error("the header is not a JSON object")
        header.pop("__metadata__", None)
        base = 8 + n_header
        tensors = {name: self._parse_entry(name, entry, base) for name, entry in header.items()}
        self._check_overlap(tensors, base)
        return tensors

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise self._error("the header names something twice")
        return result

    def _parse_entry(self, name: str, entry: object, base: int) -> TensorInfo:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._error(f"tensor {name!r} lacks dtype, shape or data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str):
            raise self._error(f"tensor {name!r} has the dtype {str(dtype)[:80]}")
        is_shape = isinstance(shape, list) and len(shape) <= _MAX_DIMS
        if not is_shape or not all(_is_count(n) and n < 2**63 for n in shape):
            raise self._error(f"tensor {name!r} has the shape {str(shape)[:80]}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
            raise self._error(f"tensor {name!r} has the offsets {str(offsets)[:80]}")
        start, stop = offsets
        if start > stop or stop > self.size - base:
            raise self._error(
                f"tensor {name!r} lies at {start}..{stop}, the file has {self.size - base} bytes "
                "of data: it is incomplete or damaged"
            )
        needed = n_bytes(dtype, shape)  # a type that is not known matters only if it is used
        if needed not in (None, stop - start):
            raise self._error(
                f"tensor {name!r} {shape} of {dtype} needs {needed} bytes, has {stop - start}"
            )
        return TensorInfo(name, dtype, tuple(shape), base + start, base + stop)

    def _check_overlap(self, tensors: dict[str, TensorInfo], base: int) -> None:
        used, before = base, ""
        for info in sorted(tensors.values(), key=lambda t: (t.start, t.stop)):
            if info.start < used:
                raise self._error(f"tensors {before!r} and {info.name!r} overlap")
            used, before = info.stop, info.name

    def array(self, info: TensorInfo) -> npt.NDArray[Any]:
        """A read-only view of the stored elements, in the tensor's shape; of a type that NumPy does
        not have as bit patterns."""
        dtype = numpy_dtype(info.dtype)
        return np.frombuffer(self._data, dtype, info.count, info.start).reshape(info.shape)

    def release(self, start: int, stop: int) -> None:
        """Tell the system that the file's bytes from `start` to `stop` need not stay in memory."""
        self._bytes.release(start, stop)


def has_weights(folder: Path) -> bool:
    """Whether a folder says that it holds safetensors weights."""
    return os.path.lexists(folder / INDEX_NAME) or any(folder.glob("*.safetensors"))


class Checkpoint:
    """All tensors of a model folder.

    Reads `model.safetensors.index.json` when there is one (shards may have any stem), else the
    single `model.safetensors`, else the only `*.safetensors` file. Use as a context manager. Raises
    `ConversionError` when there are no weights, shards are missing, or index and shards disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards: list[Shard] = []
        self.tensors: dict[str, tuple[Shard, TensorInfo]] = {}
        try:
            if os.path.lexists(folder / INDEX_NAME):
                self._open_index(folder / INDEX_NAME)
            else:
                self._open(self._single(folder))
        except BaseException:
            self.close()
            raise
        if not self.tensors:
            self.close()
            raise ConversionError(f"{folder}: the checkpoint holds no tensors. Download it again.")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap all shards; calling it again does nothing."""
        for shard in self._shards:
            shard.close()

    @property
    def paths(self) -> list[Path]:
        """The weight files."""
        return [shard.path for shard in self._shards]

    @staticmethod
    def _single(folder: Path) -> Path:
        if os.path.lexists(folder / SINGLE_NAME):
            return folder / SINGLE_NAME
        found = sorted(folder.glob("*.safetensors"))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found[:4])
            raise ConversionError(
                f"{folder}: several weight files ({names}) and no {INDEX_NAME} to say which belong "
                "together. Download the index as well."
            )
        others = sorted(p.name for p in folder.iterdir() if _is_other_weight(p.name))
        held = f" ({', '.join(others[:3])} found)" if others else ""
        raise ConversionError(
            f"{folder}: no .safetensors weights found{held}. Finish the download, or, if the "
            "weights are in another format (.bin, .pt), save them as safetensors."
        )

    def _open(self, path: Path) -> Shard:
        shard = Shard(path)
        self._shards.append(shard)
        for name, info in shard.tensors.items():
            if name in self.tensors:
                raise ConversionError(f"{path}: tensor {name!r} is also in another shard")
            self.tensors[name] = (shard, info)
        return shard

    def _open_index(self, index: Path) -> None:
        weight_map = read_json(index, "the weight index").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise FormatError(f"{index}: no weight_map in the index. Download it again.")
        by_file: dict[str, set[str]] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
                raise FormatError(f"{index}: {name!r} points to {file!r}, not to a file beside it")
            by_file.setdefault(file, set()).add(name)
        missing = [file for file in sorted(by_file) if not (self.folder / file).is_file()]
        if missing:
            raise ConversionError(
                f"{self.folder}: {', '.join(missing[:4])} named in {INDEX_NAME} but missing "
                f"({len(missing)} of {len(by_file)}){self._remedy(missing)}"
            )
        for file, names in sorted(by_file.items()):
            stored = set(self._open(self.folder / file).tensors)
            if stored != names:
                lacking, extra = sorted(names - stored)[:3], sorted(stored - names)[:3]
                raise ConversionError(
                    f"{self.folder / file}: does not match {INDEX_NAME} "
                    f"(missing {lacking}, not listed {extra}). Download both again."
                )

    def _remedy(self, missing: list[str]) -> str:
        if (self.folder / SINGLE_NAME).is_file() and SINGLE_NAME not in missing:
            return (
                f". {SINGLE_NAME} is there: if it is the whole model, the index is left over from "
                "another download; delete it."
            )
        links = [name for name in missing if (self.folder / name).is_symlink()]
        if links:
            return f": {links[0]} is a link to a file that is not there. Download the shards again."
        return unfinished(self.folder / missing[0]) + ". Download the missing shards."


def _is_other_weight(name: str) -> bool:
    return name.endswith((".bin", ".pt", ".pth", ".ckpt", ".incomplete", ".part", ".crdownload"))
