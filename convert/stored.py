"""Weights of a checkpoint as rows of float32, with the scales that 8-bit floats come with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import FLOAT_DTYPES, SCALE_DTYPES, SCALED_DTYPES, to_float32
from .errors import ConversionError
from .safetensors import Checkpoint, Shard, TensorInfo

Block = tuple[int, int]
"""Rows and columns that share a scale."""

DEFAULT_BLOCK: Block = (128, 128)
_SUFFIXES = ("_scale_inv", "_scale")  # both multiply, whatever the name says

# Values read at once: large enough to be fast, small enough that what the quantisers make of them
# stays within some tens of megabytes.
_CHUNK_VALUES = 1 << 20


def stated_block(quantisation: object) -> Block | None:
    """The block size in a `quantization_config`, if there is a valid one."""
    if not isinstance(quantisation, dict):
        return None
    groups = quantisation.get("config_groups")
    places = [quantisation.get("weight_block_size")]
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        places.append(weights.get("block_structure") if isinstance(weights, dict) else None)
    for block in places:
        if isinstance(block, list) and len(block) == 2 and all(type(n) is int for n in block):
            rows, columns = block
            if rows > 0 and columns > 0:
                return rows, columns
    return None


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of a weight, and how many of its elements share one."""

    shard: Shard
    info: TensorInfo
    block: Block

    def apply(
        self, rows: npt.NDArray[np.float32], numbers: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.float32]:
        """Some rows of the weight, their numbers given, times their scales."""
        columns = rows.shape[1]
        n_row_blocks = -(-self.info.count // -(-columns // self.block[1]))
        stored = self.shard.array(self.info).reshape(n_row_blocks, -1)
        factors = to_float32(stored, self.info.dtype)[numbers // self.block[0]]
        return rows * np.repeat(factors, self.block[1], axis=1)[:, :columns]


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight of floating-point numbers, as it is in the checkpoint."""

    shard: Shard
    info: TensorInfo
    scale: Scale | None

    @property
    def dtype(self) -> str:
        """The type, for people."""
        return self.info.dtype + (f" x {self.scale.info.dtype}" if self.scale else "")

    def _matrix(self) -> npt.NDArray[Any]:
        stored = self.shard.array(self.info)
        return stored.reshape(-1, stored.shape[-1] if stored.ndim else 1)

    def rows(self, numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Some rows of the tensor, [n, row length]."""
        values = to_float32(self._matrix()[numbers], self.info.dtype)
        return values if self.scale is None else self.scale.apply(values, numbers)

    def chunks(self, order: npt.NDArray[np.intp] | None) -> Iterator[npt.NDArray[np.float32]]:
        """All rows, a bounded number of values at a time; in another order than the file's if one
        is given."""
        n_rows, n_columns = self._matrix().shape
        step = max(1, _CHUNK_VALUES // n_columns)
        row_bytes = (self.info.stop - self.info.start) // n_rows
        for first in range(0, n_rows, step):
            last = min(first + step, n_rows)
            numbers = np.arange(first, last) if order is None else order[first:last]
            yield self.rows(numbers)
            if order is None:
                self.shard.release(self.info.start, self.info.start + last * row_bytes)
        self.release()

    def release(self) -> None:
        """Tell the system that the data need not stay in memory."""
        self.shard.release(self.info.start, self.info.stop)


def find_stored(checkpoint: Checkpoint, name: str, block: Block | None) -> Stored:
    """The weight of that name, and its scales if it has some.

    `block` is what the configuration says about scales of blocks. Raises `ConversionError` for a
    type that is not floating point, and for scales that are missing or fit no known pattern.
    """
    shard, info = checkpoint.tensors[name]
    if info.dtype not in FLOAT_DTYPES:
        raise ConversionError(
            f"{shard.path}: tensor {name!r} is {info.dtype}, expected floating point: convert the "
            "unquantised checkpoint"
        )
    if info.dtype not in SCALED_DTYPES:
        return Stored(shard, info, None)
    names = [name + suffix for suffix in _SUFFIXES]
    found = [checkpoint.tensors[scale] for scale in names if scale in checkpoint.tensors]
    if len(found) != 1:
        raise ConversionError(
            f"{shard.path}: tensor {name!r} is {info.dtype} and has {len(found)} tensors of scales "
            f"({' or '.join(names)}), expected 1: the checkpoint is incomplete; convert "
            "the unquantised one"
        )
    scale_shard, scale = found[0]
    if scale.dtype not in SCALE_DTYPES:
        raise ConversionError(
            f"{scale_shard.path}: tensor {scale.name!r} is {scale.dtype}, expected floating point"
        )
    return Stored(shard, info, Scale(scale_shard, scale, _block(shard, info, scale, block)))


def _block(shard: Shard, info: TensorInfo, scale: TensorInfo, stated: Block | None) -> Block:
    n_columns = info.shape[-1] if info.shape else 1
    n_rows = info.count // n_columns
    if scale.count == 1:
        return n_rows, n_columns
    if len(info.shape) == 2:
        for block in filter(None, (stated, (1, n_columns), DEFAULT_BLOCK)):
            shape = (-(-n_rows // block[0]), -(-n_columns // block[1]))
            if scale.shape == shape or (shape[1] == 1 and scale.shape == (shape[0],)):
                return block
    raise ConversionError(
        f"{shard.path}: tensor {scale.name!r} of shape {list(scale.shape)} gives {info.name!r} of "
        f"shape {list(info.shape)} neither one scale, nor one per row, nor one per block of "
        "{} x {}: convert the unquantised checkpoint".format(*(stated or DEFAULT_BLOCK))
    )
