"""Small models whose matrices all have one type, for every type that ggml can multiply with.

llama.cpp's own quantisation replaces types whose blocks do not fit a row, and searching tables for
the smallest types takes it half a minute. Here blocks are drawn from a few that ggml made, or, of
those types, are random bytes. What a file holds is read back by ggml: `types_in`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp._ggml as ggml
import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

from tests.tools.gguf_files import finish
from tests.tools.synthetic import SHAPES, Shape, Tensors, add_sizes

Bytes = npt.NDArray[np.uint8]

_N_BLOCKS = 256  # that a matrix's are drawn from
_DEVIATION = 1 / 16  # of the weights; right for rows of 256
_SEARCHED = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")


class _Traits(ctypes.Structure):
    """ggml_type_traits_cpu."""

    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ggml.libggml, name)
    function.restype, function.argtypes = result, arguments
    return function


_int, _int64, _size, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
_type_name = _function("ggml_type_name", ctypes.c_char_p, _int)
_block_weights = _function("ggml_blck_size", _int64, _int)
_block_bytes = _function("ggml_type_size", _size, _int)
_traits = _function("ggml_get_type_traits_cpu", ctypes.POINTER(_Traits), _int)
_quantise = _function(
    "ggml_quantize_chunk", _size, _int, _pointer, _pointer, _int64, _int64, _int64, _pointer
)


def _numbers() -> dict[str, int]:
    names = {}
    for number in range(llama_cpp.GGML_TYPE_COUNT):
        name = _type_name(number)  # of types that were removed: none
        if name and _traits(number).contents.vec_dot:
            names[name.decode()] = number
    return names


NUMBERS = _numbers()
"""ggml's names and numbers of the types it can multiply with."""


def _weights_of(name: str, blocks: Bytes) -> npt.NDArray[np.float32]:
    """The weights that blocks stand for."""
    weights = np.empty(len(blocks) * _block_weights(NUMBERS[name]), np.float32)
    convert = _function(f"dequantize_row_{name}", None, _pointer, _pointer, _int64)
    convert(blocks.ctypes.data, weights.ctypes.data, weights.size)
    return weights


def _set_scale(name: str, blocks: Bytes, scale: float) -> None:
    half = np.array([scale], np.float16)
    if name == "iq1_m":  # four bits of it in the upper halves of the last four numbers
        nibbles = half.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles.astype(np.uint8) << 4
    else:
        blocks[:, :2] = half.view(np.uint8)


def _made_of_bytes(name: str, random: np.random.Generator, n_bytes: int) -> Bytes:
    blocks = random.integers(0, 256, (_N_BLOCKS, n_bytes), dtype=np.uint8)
    _set_scale(name, blocks, 1.0)
    _set_scale(name, blocks, _DEVIATION / float(np.std(_weights_of(name, blocks))))
    return blocks


def _made_by_ggml(name: str, random: np.random.Generator, n_bytes: int) -> Bytes:
    weights = _DEVIATION * random.standard_normal((_N_BLOCKS, 256)).astype(np.float32)
    per_row = 256 // _block_weights(NUMBERS[name])
    blocks = np.empty((_N_BLOCKS * per_row, n_bytes), np.uint8)
    written = _quantise(
        NUMBERS[name], weights.ctypes.data, blocks.ctypes.data, 0, _N_BLOCKS, 256, None
    )
    assert written == blocks.nbytes
    return blocks


class _OfType(Tensors):
    """Makes every matrix of one type."""

    def __init__(self, writer: GGUFWriter, name: str) -> None:
        super().__init__(writer)
        self._type = name
        random = np.random.default_rng(2)
        make = _made_of_bytes if name in _SEARCHED else _made_by_ggml
        self._blocks = make(name, random, _block_bytes(NUMBERS[name]))
        self._choice = random

    def matrix(self, name: str, kind: Any, n_out: int, n_in: int, n_experts: int = 0) -> None:
        n = max(n_experts, 1) * n_out * n_in // _block_weights(NUMBERS[self._type])
        blocks = self._blocks[self._choice.integers(0, len(self._blocks), n)]
        shape = (n_experts, n_out, n_in) if n_experts else (n_out, n_in)
        # signed, as unsigned bytes would have the writer look the type up, which knows fewer types
        self._writer.add_tensor(
            f"{name}.weight",
            blocks.view(np.int8),
            raw_shape=shape,
            raw_dtype=NUMBERS[self._type],  # type: ignore[arg-type]
        )


def write_of_type(path: Path, type_name: str) -> Path:
    """A mixture of experts in which all matrices but the routers are of that type."""
    shape: Shape = SHAPES["tiny-moe"]
    writer = GGUFWriter(path, shape.architecture)
    add_sizes(writer, shape)
    writer.add_tokenizer_model("none")
    tensors = _OfType(writer, type_name)
    tensors.matrix("token_embd", None, shape.n_vocab, shape.n_embd)
    tensors.norm("output_norm", shape.n_embd)
    tensors.matrix("output", None, shape.n_vocab, shape.n_embd)
    for i in range(shape.n_layer):
        tensors.layer(f"blk.{i}", None, shape)  # type: ignore[arg-type]
    finish(writer)
    return path


class _InitParams(ctypes.Structure):
    """gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def types_in(path: Path) -> dict[str, str]:
    """The tensors of a file and their types, as ggml reads them."""
    opened = _function("gguf_init_from_file", _pointer, ctypes.c_char_p, _InitParams)(
        str(path).encode(), _InitParams(True, None)
    )
    assert opened
    n_tensors = _function("gguf_get_n_tensors", _int64, _pointer)(opened)
    name_of = _function("gguf_get_tensor_name", ctypes.c_char_p, _pointer, _int64)
    type_of = _function("gguf_get_tensor_type", _int, _pointer, _int64)
    found = {
        name_of(opened, i).decode(): _type_name(type_of(opened, i)).decode()
        for i in range(n_tensors)
    }
    _function("gguf_free", None, _pointer)(opened)
    return found
