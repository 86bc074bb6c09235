"""Targets with random weights in architectures for which llama.cpp keeps no layer inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

N_EMBD = 64
N_LAYER = 4
N_HEAD = 4
N_HEAD_KV = 2
HEAD_DIM = 16
N_FF = 96

ARCHITECTURES = ("qwen2", "gemma3")


def write_tiny_target(
    path: Path, architecture: str, *, tokenizer_from: Path, seed: int = 1
) -> Path:
    """Write a 4-layer float32 target of hidden size 64 with another target's tokenizer, so that a
    drafter for that one fits this one too. Returns `path`."""
    source = GGUFReader(tokenizer_from)
    writer = GGUFWriter(path, architecture)
    _hyper_parameters(writer, architecture)
    n_vocab = _copy_tokenizer(writer, source)
    for name, values in _tensors(architecture, n_vocab, np.random.default_rng(seed)).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _hyper_parameters(writer: GGUFWriter, architecture: str) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if architecture == "gemma3":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        # shorter than the tests' sequences, so that the cache drops tokens
        writer.add_sliding_window(16)


def _copy_tokenizer(writer: GGUFWriter, source: GGUFReader) -> int:
    n_vocab = 0
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if name == "tokenizer.ggml.tokens":
            n_vocab = len(value)
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    return n_vocab


def _tensors(architecture: str, n_vocab: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm(length: int) -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(length)).astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(n_vocab, N_EMBD),
        "output_norm.weight": norm(N_EMBD),
        # not tied: a random tied head keeps repeating the last token
        "output.weight": matrix(n_vocab, N_EMBD),
    }
    for i in range(N_LAYER):
        block = f"blk.{i}."
        heads = {"q": N_HEAD, "k": N_HEAD_KV, "v": N_HEAD_KV}
        for kind, n_heads in heads.items():
            tensors[f"{block}attn_{kind}.weight"] = matrix(n_heads * HEAD_DIM, N_EMBD)
            if architecture == "qwen2":
                tensors[f"{block}attn_{kind}.bias"] = norm(n_heads * HEAD_DIM) - 1
        tensors[f"{block}attn_output.weight"] = matrix(N_EMBD, N_HEAD * HEAD_DIM)
        tensors[f"{block}attn_norm.weight"] = norm(N_EMBD)
        tensors[f"{block}ffn_norm.weight"] = norm(N_EMBD)
        tensors[f"{block}ffn_gate.weight"] = matrix(N_FF, N_EMBD)
        tensors[f"{block}ffn_up.weight"] = matrix(N_FF, N_EMBD)
        tensors[f"{block}ffn_down.weight"] = matrix(N_EMBD, N_FF)
        if architecture == "gemma3":
            for name in ("post_attention_norm", "post_ffw_norm"):
                tensors[f"{block}{name}.weight"] = norm(N_EMBD)
            for name in ("attn_q_norm", "attn_k_norm"):
                tensors[f"{block}{name}.weight"] = norm(HEAD_DIM)
    return tensors
