"""A token's logits have the same bits alone and in a batch, on any number of threads.

One case for each thing in a CPU decode that could depend on the width of a batch, and one for every
type of weights that ggml can multiply with, dense and in experts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

import pydflash2
from tests.tools.every_type import NUMBERS, types_in, write_of_type
from tests.tools.synthetic import synthetic
from tests.tools.tiny_lora import write_tiny_lora
from tests.tools.tiny_targets import write_tiny_target

N_TOKENS = 200
WIDTHS = ([2], [7], [8], [16], [64], [3, 1, 40], [N_TOKENS])
MORE_WIDTHS = ([2], [4], [8], [16], [64], [65], [128], [N_TOKENS])  # for models that take no time
Logits = npt.NDArray[np.float32]
_GGML_Q8_0, _GGML_F32 = 8, 0  # ggml_type


@dataclass(frozen=True)
class Case:
    """A model, made in a folder from the tiny target and SmolLM2, options of its context, and
    the weights that an adapter changes."""

    make: Callable[[Path, Path, Path], Path]
    options: dict[str, Any] = field(default_factory=dict)
    adapted: tuple[str, ...] = ()


def smollm(folder: Path, tiny: Path, smollm: Path) -> Path:
    return smollm


def architecture(name: str) -> Callable[[Path, Path, Path], Path]:
    return lambda folder, tiny, smollm: write_tiny_target(
        folder / "target.gguf", name, tokenizer_from=tiny
    )


def experts(type_name: str) -> Callable[[Path, Path, Path], Path]:
    return lambda folder, tiny, smollm: synthetic("tiny-moe", type_name, folder=folder)


CASES = {
    "packed weights and flash attention": Case(smollm),
    "quantised cache": Case(smollm, {"type_k": _GGML_Q8_0, "type_v": _GGML_Q8_0}),
    "float32 cache": Case(smollm, {"type_k": _GGML_F32, "type_v": _GGML_F32}),
    "no flash attention": Case(smollm, {"flash_attn": False}),
    "float32 weights": Case(architecture("qwen2")),
    "a sliding window": Case(architecture("gemma3")),
    "experts": Case(experts("Q4_0")),
    "experts in mxfp4": Case(experts("MXFP4")),
    "an adapter": Case(
        experts("Q4_0"), adapted=("blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight")
    ),
    "experts in float16, no flash attention": Case(experts("F16"), {"flash_attn": False}),
    "quantised keys, no flash attention": Case(
        experts("Q8_0"), {"flash_attn": False, "type_k": _GGML_Q8_0}
    ),
}


def decode(context: Any, n_vocab: int, pattern: list[int], n_tokens: int = N_TOKENS) -> Logits:
    """The logits of n_tokens tokens, decoded in batches of these widths, over and over."""
    tokens = np.random.default_rng(1).integers(n_vocab // 4, n_vocab - 2, n_tokens)
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(n_tokens, 0, 1)
    rows: list[Logits] = []
    while len(rows) < n_tokens:
        at = len(rows)
        batch.n_tokens = min(pattern[at % len(pattern)], n_tokens - at)
        for i in range(batch.n_tokens):
            batch.token[i] = int(tokens[at + i])
            batch.pos[i] = at + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        assert llama_cpp.llama_decode(context, batch) == 0
        for i in range(batch.n_tokens):
            row = llama_cpp.llama_get_logits_ith(context, i)
            rows.append(np.ctypeslib.as_array(row, (n_vocab,)).copy())
    llama_cpp.llama_batch_free(batch)
    return np.stack(rows)


def opened(path: Path, n_threads: int, options: dict[str, Any]) -> llama_cpp.Llama:
    chosen = {"flash_attn": True, "n_threads": n_threads, "n_threads_batch": n_threads, **options}
    chosen = {"n_ctx": 512, "n_batch": N_TOKENS, **chosen}
    return llama_cpp.Llama(str(path), n_gpu_layers=0, verbose=False, **chosen)


@pytest.fixture(autouse=True)
def kernels() -> None:
    found = pydflash2.enable_kernels()
    if found.state != "active":
        pytest.skip(f"kernels are not in use: {found.note}")


def check_bits(path: Path, options: dict[str, Any], widths: tuple[list[int], ...]) -> None:
    """Each width, and other numbers of threads, against one token at a time on two threads."""
    llama = opened(path, 2, options)
    expected = decode(llama.ctx, llama.n_vocab(), [1])
    assert np.isfinite(expected).all()
    assert len(np.unique(expected, axis=0)) == N_TOKENS
    for pattern in widths:
        assert np.array_equal(decode(llama.ctx, llama.n_vocab(), list(pattern)), expected), pattern
    llama.close()
    for n_threads in (1, 3):
        llama = opened(path, n_threads, options)
        assert np.array_equal(decode(llama.ctx, llama.n_vocab(), [8]), expected), n_threads
        llama.close()


@pytest.mark.parametrize("name", CASES)
def test_bits(name: str, tiny_target: Path, smollm_target: Path, tmp_path: Path) -> None:
    case = CASES[name]
    path = case.make(tmp_path, tiny_target, smollm_target)
    options = dict(case.options)
    if case.adapted:
        # rows of 8 are too short for a kernel
        adapter = write_tiny_lora(tmp_path / "adapter.gguf", path, case.adapted, rank=8)
        options["lora_path"] = str(adapter)
    check_bits(path, options, WIDTHS)


@pytest.mark.parametrize("type_name", NUMBERS)
def test_bits_of_type(type_name: str, tmp_path: Path) -> None:
    """Attention, head and experts, of which each gets eight rows and more in wide batches: from
    there on ggml has other code for some types, and before that for others."""
    path = write_of_type(tmp_path / "model.gguf", type_name)
    types = types_in(path)
    for matrix in ("attn_q", "attn_output", "ffn_gate_exps", "ffn_down_exps"):
        assert types[f"blk.1.{matrix}.weight"] == type_name
    assert types["output.weight"] == type_name
    check_bits(path, {}, MORE_WIDTHS)


@pytest.mark.parametrize(
    ("name", "head_size"),
    [("q4_0", 32), ("q4_0", 64), ("q4_1", 64), ("q5_0", 64), ("q5_1", 64), ("iq4_nl", 64)],
)
def test_quantised_caches(name: str, head_size: int, tiny_target: Path, tmp_path: Path) -> None:
    """llama.cpp rotates what it quantises of heads of 64."""
    path = tmp_path / "target.gguf"
    write_tiny_target(path, "qwen2", tokenizer_from=tiny_target, head_size=head_size)
    number = getattr(llama_cpp, f"GGML_TYPE_{name.upper()}")
    check_bits(path, {"type_k": number, "type_v": number}, ([8], [N_TOKENS]))


@pytest.mark.parametrize("head_size", [120, 100, 34, 20, 8])
def test_head_sizes(head_size: int, tiny_target: Path, tmp_path: Path) -> None:
    """Sizes that are no multiple of what a kernel computes at once, over several spans of keys."""
    path = tmp_path / "target.gguf"
    write_tiny_target(path, "gptneox", tokenizer_from=tiny_target, head_size=head_size)
    n_tokens = 700
    expected: Logits | None = None
    for n_threads, widths in ((1, (1, 64)), (2, (1, 8))):
        llama = opened(path, n_threads, {"n_ctx": 1024, "n_batch": n_tokens})
        for width in widths:
            logits = decode(llama.ctx, llama.n_vocab(), [width], n_tokens)
            expected = logits if expected is None else expected
            assert np.array_equal(logits, expected), (n_threads, width)
        llama.close()


def test_the_comparison_can_fail(tiny_target: Path, tmp_path: Path) -> None:
    """With kernels off, llama.cpp gives other bits in batches than alone."""
    path = architecture("qwen2")(tmp_path, tiny_target, tiny_target)
    with pydflash2.Target(path, n_ctx=512, n_batch=256, n_threads=2, kernels=False) as target:
        context = ctypes.c_void_p(target.context_address)
        n_vocab = target.vocab.n_tokens
        assert not np.array_equal(decode(context, n_vocab, [64]), decode(context, n_vocab, [1]))
