"""The matmul kernels against NumPy, on weights that ggml quantised.

`native/ops/qmm/qmm.h` defines a product as a sequence of float32 operations. It is carried out here
once more, from ggml's bytes on, and every kernel has to give the same bits. What the definition is
worth is checked against ordinary products of the dequantised weights in float64.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt
import pytest

from tests.tools.ggml_weights import (
    WEIGHT_TYPES,
    Parts,
    dequantise,
    put_together,
    quantise,
    take_apart,
)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

N_IN = 512
N_OUT = 35  # two whole tiles and a part of one
N_ROWS = 19  # a whole batch and a part of one
BLOCK = 32
FLOAT_TYPES = ("f32", "f16", "bf16")

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "package" / "tests" / "native" / "libqmm_shared.so"

ffi: Any = cffi.FFI()
ffi.cdef(
    """
    const char *qmm_isa_at(int32_t index);
    int32_t qmm_multiply(const char *type_name, const char *isa, float *out, const void *weights,
                         const float *rows, int64_t n_rows, int64_t n_out, int64_t n_in);
    """
)


@pytest.fixture(scope="module")
def library() -> Any:
    """The kernels, as the native tests' build leaves them; DF2_QMM_LIBRARY names another."""
    path = Path(os.environ.get("DF2_QMM_LIBRARY") or LIBRARY)
    if not path.is_file():
        pytest.skip(f"needs {path}: `make test` builds it")
    return ffi.dlopen(str(path))


@pytest.fixture(scope="module")
def isas(library: Any) -> list[str]:
    """Every instruction set that was compiled and that this CPU has."""
    names: list[str] = []
    while (name := library.qmm_isa_at(len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    assert names[-1] == "ref"
    return [name for name in names if name]


def multiply(
    library: Any, type_name: str, isa: str, weights: npt.NDArray[Any], n_in: int, rows: Floats
) -> Floats:
    """The kernel's product [n_rows, n_out]. weights: rows as ggml stores them."""
    weights = np.ascontiguousarray(weights)
    rows = np.ascontiguousarray(rows, np.float32)
    out = np.full((len(rows), len(weights)), np.nan, np.float32)
    status = library.qmm_multiply(
        type_name.encode(),
        isa.encode(),
        ffi.cast("float *", out.ctypes.data),
        ffi.cast("void *", weights.ctypes.data),
        ffi.cast("float *", rows.ctypes.data),
        *(len(rows), len(weights), n_in),
    )
    assert status == 0
    return out


# ------------------------------------------------------------------------------ the definition


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c in float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there: towards its error if that is
    not zero and the last bit is even. Rounding that to float32 gives what one rounding would have.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    needs = (error != 0) & (bits & 1 == 0)
    # bits count magnitudes: one more is away from zero
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = (bits + np.where(needs, step, 0)).view(np.float64)
    rounded: Floats = odd.astype(np.float32)
    return rounded


def quantised_rows(rows: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
    """Codes [n_rows, n_in / 32, 32] and their scales [n_rows, n_in / 32]."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    largest = np.abs(blocks).max(2)
    counts = largest >= np.float32(2.0**-100)
    divisor = np.where(counts, largest, np.float32(1))
    inverse = np.where(counts, np.float32(127) / divisor, np.float32(0))
    codes = np.rint(blocks * inverse[:, :, None]).astype(np.int32)
    scales = np.where(counts, largest * (np.float32(1) / np.float32(127)), np.float32(0))
    return codes, scales.astype(np.float32)


def defined_product(parts: Parts, rows: Floats, *, has_halves: bool) -> Floats:
    """The result as qmm.h defines it: [n_rows, n_out]."""
    activations, scales = quantised_rows(rows)
    n_out = len(parts.codes)
    weights = parts.codes.reshape(n_out, -1, 2, BLOCK // 2)
    halves = activations.reshape(*activations.shape[:2], 2, BLOCK // 2)
    dots = np.einsum("obhi,rbhi->bhro", weights, halves)
    weight_scales = parts.scales.reshape(n_out, -1, 2)
    sums = np.zeros((len(rows), n_out), np.float32)
    for b in range(weights.shape[1]):
        own = scales[:, b, None]
        if has_halves:
            for half in range(2):
                dot = dots[b, half].astype(np.float32)
                sums = fma(weight_scales[None, :, b, half] * own, dot, sums)
        else:
            dot = dots[b].sum(0).astype(np.float32)
            sums = fma(weight_scales[None, :, b, 0] * own, dot, sums)
        if parts.minima is not None:
            total = activations[:, b].sum(1, keepdims=True).astype(np.float32)
            minima = np.broadcast_to(parts.minima[None, :, b], sums.shape)
            sums = fma(minima, np.broadcast_to(own * total, sums.shape), sums)
    return sums


def largest_error(weights: Doubles, rows: Floats) -> Doubles:
    """How far a product may be from the exact one: every activation is off by half a step, and the
    float32 sum of the terms by some of its last bits."""
    _, scales = quantised_rows(rows)
    steps = scales.astype(np.float64).repeat(BLOCK, 1)
    magnitude = np.abs(weights)
    limit: Doubles = 0.5001 * steps @ magnitude.T
    limit += 1e-5 * (np.abs(rows).astype(np.float64) + steps) @ magnitude.T
    return limit + 1e-30


# ---------------------------------------------------------------------------------------- data


def random_weights() -> Floats:
    return np.random.default_rng(1).standard_normal((N_OUT, N_IN)).astype(np.float32)


def structured_weights() -> Floats:
    """Rows that reach the ends of a format: zeros, one sign only, sizes from 1e-4 to 1e3, single
    outliers."""
    random = np.random.default_rng(2)
    weights = random.standard_normal((N_OUT, N_IN)).astype(np.float32)
    weights *= np.geomspace(1e-4, 1e3, N_OUT, dtype=np.float32)[:, None]
    weights[3] = 0
    weights[4] = np.abs(weights[4])
    weights[5] = -np.abs(weights[5])
    weights[6] = 0
    weights[6, ::37] = 5
    weights[7] = np.arange(N_IN) % 17 - 8
    weights[8, :256] = 0
    return weights


def activations() -> Floats:
    """Ordinary rows, and rows with what quantising has to get right: zeros, outliers, ties of the
    rounding, values too small to count and very large ones."""
    random = np.random.default_rng(3)
    rows = random.standard_normal((N_ROWS, N_IN)).astype(np.float32)
    rows[1] = 0
    rows[2, 5::64] = 300
    rows[3] = np.arange(N_IN) % 255 - 127
    rows[4, ::BLOCK] = 127
    rows[4, 1::BLOCK] = 0.5
    rows[4, 2::BLOCK] = -1.5
    rows[5] *= np.float32(1e-33)
    rows[5, :64] = np.float32(2.0**-99)
    rows[6] *= np.float32(1e15)
    rows[7] = np.abs(rows[7])
    rows[8, 40:] = 0
    return rows


@pytest.fixture(params=["random", "structured"])
def weights(request: pytest.FixtureRequest) -> Floats:
    return random_weights() if request.param == "random" else structured_weights()


# --------------------------------------------------------------------------------------- tests


def test_every_type_is_tested() -> None:
    table = (ROOT / "native" / "ops" / "qmm" / "formats.inc").read_text()
    names = re.findall(r"^DF2_QMM_FORMAT\(\w+, (\w+),", table, re.M)
    assert sorted(names) == sorted([*WEIGHT_TYPES, *FLOAT_TYPES])


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_parts_are_ggmls_weights(name: str, weights: Floats) -> None:
    """Taking blocks apart as this test does gives the weights that ggml reads in them."""
    rows = quantise(name, weights)
    expected = dequantise(name, rows)
    found = put_together(take_apart(name, rows))
    # ggml rounds code * scale + minimum to float32
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_product_has_the_defined_bits(
    library: Any, isas: list[str], name: str, weights: Floats
) -> None:
    quantised = quantise(name, weights)
    rows = activations()
    has_halves = WEIGHT_TYPES[name].has_halves
    expected = defined_product(take_apart(name, quantised), rows, has_halves=has_halves)
    for isa in isas:
        found = multiply(library, name, isa, quantised, N_IN, rows)
        # as integers, since 0.0 == -0.0; adding zero turns the latter into the former
        np.testing.assert_array_equal(
            (found + np.float32(0)).view(np.int32),
            (expected + np.float32(0)).view(np.int32),
            err_msg=f"{name}, {isa}",
        )


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_product_is_near_the_exact_one(
    library: Any, isas: list[str], name: str, weights: Floats
) -> None:
    quantised = quantise(name, weights)
    rows = activations()
    exact = dequantise(name, quantised).astype(np.float64)
    found = multiply(library, name, isas[0], quantised, N_IN, rows)
    error = np.abs(found - rows.astype(np.float64) @ exact.T)
    assert (error <= largest_error(exact, rows)).all()


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_float_types(library: Any, isas: list[str], name: str, weights: Floats) -> None:
    """Input by input, in order, each multiplied and added with one rounding."""
    stored, values = stored_floats(name, weights)
    rows = activations()
    expected = np.zeros((N_ROWS, N_OUT), np.float32)
    for i in range(N_IN):
        factor = np.broadcast_to(values[None, :, i], expected.shape)
        expected = fma(factor, np.broadcast_to(rows[:, i, None], expected.shape), expected)
    for isa in isas:
        found = multiply(library, name, isa, stored, N_IN, rows)
        np.testing.assert_array_equal(
            (found + np.float32(0)).view(np.int32),
            (expected + np.float32(0)).view(np.int32),
            err_msg=f"{name}, {isa}",
        )


def stored_floats(name: str, weights: Floats) -> tuple[npt.NDArray[Any], Floats]:
    """The weights as a file stores them, and the float32 values that stands for."""
    if name == "f32":
        return weights, weights
    if name == "f16":
        halves = weights.astype(np.float16)
        return halves, halves.astype(np.float32)
    upper = weights.view(np.uint32) >> 16
    return upper.astype(np.uint16), (upper << 16).view(np.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_K", "mxfp4"])
def test_rows_that_are_not_finite(library: Any, isas: list[str], name: str, value: float) -> None:
    """They give NaN, and leave the rows beside them alone."""
    quantised = quantise(name, random_weights())
    rows = activations()[:4]
    expected = multiply(library, name, isas[0], quantised, N_IN, rows)
    rows[2, 77] = value
    for isa in isas:
        found = multiply(library, name, isa, quantised, N_IN, rows)
        assert np.isnan(found[2]).all()
        np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(expected, 2, 0))
