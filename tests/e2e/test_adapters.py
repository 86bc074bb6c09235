"""Drafting for a model with an adapter (LoRA): drafts are made with the weights themselves, and the
text is the adapted model's.

Needs the kernels, and with them before the process loads its first model, as in test_kernels.py.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader

import pydflash2
from tests.tools.layer_outputs import greedy
from tests.tools.renamed_target import write_renamed_target
from tests.tools.tiny_lora import write_tiny_lora

PROMPT = [6 + i * 37 % 150 for i in range(12)]
N_TOKENS = 24

WEIGHTS = {
    "head": ["output.weight"],
    "embeddings": ["token_embd.weight"],
    "all": ["output.weight", "token_embd.weight", "blk.1.attn_q.weight", "blk.3.ffn_down.weight"],
}

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


def open_llama(target: Path, lora: Path | None = None) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        str(target),
        lora_path=None if lora is None else str(lora),
        n_ctx=256,
        n_gpu_layers=0,
        n_threads=2,
        n_threads_batch=2,
        flash_attn=True,
        verbose=False,
    )


def set_scale(llama: llama_cpp.Llama, scale: float) -> None:
    adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(llama._lora_adapter)
    scales = (ctypes.c_float * 1)(scale)
    assert llama_cpp.llama_set_adapters_lora(llama.ctx, adapters, int(scale != 0.0), scales) == 0


def head_of(target: Path) -> np.ndarray:
    (head,) = (tensor for tensor in GGUFReader(target).tensors if tensor.name == "output.weight")
    return np.array(head.data)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_text_is_the_adapted_models(
    tiny_target: Path, tiny_drafter: Path, tmp_path: Path, kind: str
) -> None:
    lora = write_tiny_lora(tmp_path / "lora.gguf", tiny_target, WEIGHTS[kind])
    plain = open_llama(tiny_target)
    without = greedy(plain, PROMPT, N_TOKENS)[0]
    plain.close()
    llama = open_llama(tiny_target, lora)
    expected = greedy(llama, PROMPT, N_TOKENS)[0]
    assert expected != without
    with pydflash2.attach(llama, tiny_drafter, n_draft=5) as llm:
        got = llm.generate(PROMPT, max_tokens=N_TOKENS)
        assert list(got.tokens) == expected
        assert got.stats.n_drafted > 0
        draft = llm.session.draft(5)
        assert np.allclose(draft.logits, draft.hidden[1:] @ head_of(tiny_target).T, atol=1e-3)
        # and when the adapter is taken off, or put on, under a session
        for scale, text in ((0.0, without), (1.0, expected)):
            set_scale(llama, scale)
            llm.session.rewind(0)
            assert list(llm.generate(PROMPT, max_tokens=N_TOKENS).tokens) == text
    llama.close()


def test_an_adapter_that_llama_cpp_cannot_use(
    tiny_target: Path, tiny_drafter: Path, tmp_path: Path
) -> None:
    """Of embeddings that are also the head: at its next decode, llama.cpp would end the process."""
    target = write_renamed_target(tmp_path / "tied.gguf", tiny_target, is_tied=True)
    lora = write_tiny_lora(tmp_path / "lora.gguf", target, WEIGHTS["embeddings"])
    llama = open_llama(target, lora)
    with pytest.raises(pydflash2.UnsupportedError, match=r"can_mul_mat.*adapter \(LoRA\)"):
        pydflash2.attach(llama, tiny_drafter)
    set_scale(llama, 0.0)
    expected = greedy(llama, PROMPT, N_TOKENS)[0]
    with pydflash2.attach(llama, tiny_drafter, n_draft=5) as llm:
        assert list(llm.generate(PROMPT, max_tokens=N_TOKENS).tokens) == expected
    llama.close()
