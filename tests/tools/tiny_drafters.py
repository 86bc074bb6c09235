"""Drafters with random weights, in shapes that no published checkpoint covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from tests.tools.gguf_files import copy_tokenizer, finish
from tests.tools.tiny_gguf import Key, RandomTensors, Weights, write_keys

EXTRAS = frozenset(
    {"sinks", "biases", "post_norms", "layer_scale", "rope_freqs", "token_embd", "output", "d2t"}
)


@dataclass(frozen=True, kw_only=True)
class TinyDrafter:
    """What to write. The weights of a tensor follow from seed, name and shape alone, so that
    drafters that differ in one option have all others' weights in common."""

    version: int = 2
    n_layer: int = 2
    n_embd: int = 64  # another width than the target's needs its own "token_embd"
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    block_size: int = 8
    kernel_size: int = 2
    group_size: int = 16
    rank: int = 8
    top_k: int = 4
    taps: tuple[int, ...] = (1, 3)  # layer inputs, as in the file
    windowed: tuple[bool, ...] = ()  # per layer; with the key attention.sliding_window
    causal: tuple[bool, ...] = ()  # per layer, where layers differ
    n_vocab_draft: int = 0  # rows of "output"; 0: the target's vocabulary
    extras: frozenset[str] = frozenset()  # optional tensors, of EXTRAS
    keys: Mapping[str, Key] = field(default_factory=dict)  # further ones, less "dflash."
    mask_token: int = 5
    seed: int = 1


def write_tiny_drafter(
    path: Path,
    shape: TinyDrafter,
    *,
    target: Path,
    change: Callable[[dict[str, Weights]], None] = lambda tensors: None,
) -> Path:
    """Write a float32 drafter for `target`, with its tokenizer. Returns `path`.

    change: may set tensors to something else than random weights."""
    if not shape.extras <= EXTRAS:
        raise ValueError(f"unknown extras: {sorted(shape.extras - EXTRAS)}")
    source = GGUFReader(target)
    writer = GGUFWriter(path, "dflash")
    _write_keys(writer, shape)
    n_vocab = copy_tokenizer(writer, source)
    writer.add_uint32("tokenizer.ggml.mask_token_id", shape.mask_token)
    architecture = source.fields["general.architecture"].contents()
    n_embd_target = int(source.fields[f"{architecture}.embedding_length"].contents())
    tensors = _tensors(shape, n_vocab, n_embd_target)
    change(tensors)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def _write_keys(writer: GGUFWriter, shape: TinyDrafter) -> None:
    keys: dict[str, Key] = {
        "block_count": shape.n_layer,
        "context_length": 512,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "block_size": shape.block_size,
    }
    if shape.version == 2:
        keys |= {
            "conv_kernel_size": shape.kernel_size,
            "conv_group_size": shape.group_size,
            "selector_rank": shape.rank,
            "selector_top_k": shape.top_k,
        }
    keys["target_layers"] = shape.taps
    if shape.windowed:
        keys["attention.sliding_window_pattern"] = shape.windowed
    write_keys(writer, "dflash", keys | dict(shape.keys))
    if shape.causal:
        write_keys(writer, "dflash2", {"attention.causal_pattern": shape.causal})


def _tensors(shape: TinyDrafter, n_vocab: int, n_embd_target: int) -> dict[str, Weights]:
    tensors = RandomTensors(shape.seed)
    n_embd, extras = shape.n_embd, shape.extras
    tensors.matrix("fc.weight", n_embd, len(shape.taps) * n_embd_target)
    tensors.norm("enc.output_norm.weight", n_embd)
    tensors.norm("output_norm.weight", n_embd)
    for i in range(shape.n_layer):
        _add_layer(tensors, f"blk.{i}.", shape)
        if shape.version == 2:
            _add_convolutions(tensors, f"blk.{i}.", shape)
    if shape.version == 2:
        tensors.matrix("selector_hidden.weight", shape.rank, n_embd)
        tensors.matrix("selector_predecessor.weight", n_vocab, shape.rank)
        tensors.matrix("selector_successor.weight", n_vocab, shape.rank)
    if "rope_freqs" in extras:
        tensors.add("rope_freqs.weight", shape.head_dim // 2, mean=2.0, deviation=0.3)
    n_rows = shape.n_vocab_draft or n_vocab
    if "token_embd" in extras:
        tensors.matrix("token_embd.weight", n_vocab, n_embd)
    if "output" in extras:
        tensors.matrix("output.weight", n_rows, n_embd)
    if "d2t" in extras:
        # neither sorted nor a range, so that no order or offset can stand in for it
        tensors.by_name["d2t"] = np.random.default_rng(shape.seed).permutation(n_vocab)[:n_rows]
    return tensors.by_name


def _add_layer(tensors: RandomTensors, block: str, shape: TinyDrafter) -> None:
    n_embd, extras = shape.n_embd, shape.extras
    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    tensors.norm(f"{block}attn_norm.weight", n_embd)
    tensors.matrix(f"{block}attn_q.weight", n_q, n_embd)
    tensors.matrix(f"{block}attn_k.weight", n_kv, n_embd)
    tensors.matrix(f"{block}attn_v.weight", n_kv, n_embd)
    tensors.matrix(f"{block}attn_output.weight", n_embd, n_q)
    # well above one, so that attention is far from uniform and positions matter
    tensors.add(f"{block}attn_q_norm.weight", shape.head_dim, mean=1.5, deviation=0.3)
    tensors.add(f"{block}attn_k_norm.weight", shape.head_dim, mean=1.5, deviation=0.3)
    tensors.norm(f"{block}ffn_norm.weight", n_embd)
    tensors.matrix(f"{block}ffn_gate.weight", shape.n_ff, n_embd)
    tensors.matrix(f"{block}ffn_up.weight", shape.n_ff, n_embd)
    tensors.matrix(f"{block}ffn_down.weight", n_embd, shape.n_ff)
    if "sinks" in extras:
        tensors.add(f"{block}attn_sinks.weight", shape.n_head, mean=2.0, deviation=1.0)
    if "biases" in extras:
        lengths = {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv, "attn_output": n_embd}
        for name, length in lengths.items():
            tensors.add(f"{block}{name}.bias", length, mean=0.0, deviation=0.5)
    if "post_norms" in extras:
        tensors.norm(f"{block}post_attention_norm.weight", n_embd)
        tensors.norm(f"{block}post_ffw_norm.weight", n_embd)
    if "layer_scale" in extras:
        tensors.add(f"{block}layer_output_scale.weight", 1, mean=0.5, deviation=0.1)


def _add_convolutions(tensors: RandomTensors, block: str, shape: TinyDrafter) -> None:
    n_embd, kernel_size = shape.n_embd, shape.kernel_size
    n_coefficients = 2 * kernel_size * (n_embd // shape.group_size)
    for sublayer in ("attn", "ffn"):
        base = f"{block}{sublayer}_conv_base"
        tensors.add(base, 2, kernel_size, n_embd, mean=0.5, deviation=0.3)
        tensors.matrix(f"{block}{sublayer}_conv_proj.weight", n_coefficients, n_embd)
