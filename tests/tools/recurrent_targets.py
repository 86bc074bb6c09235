"""Targets with random weights that keep a recurrent state, alone or next to attention.

llama.cpp itself says which tensors an architecture has, of which shapes, from the keys alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGUFReader, GGUFWriter

from tests.tools.gguf_files import copy_tokenizer, finish
from tests.tools.layer_outputs import GgufParams, ggml_base
from tests.tools.tiny_gguf import Key, RandomTensors, Weights, write_keys


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """An architecture. Keys are named without it."""

    keys: Mapping[str, Key] = field(default_factory=dict)
    n_layer: int = 4
    seed: int = 1  # chosen so that greedy texts vary and no two best logits are nearly equal


def write_recurrent_target(
    path: Path, architecture: str, *, tokenizer_from: Path, chat_template: str | None = None
) -> Path:
    """Write a target with another target's tokenizer. The same arguments give the same bytes.
    Returns `path`."""
    shape = _SHAPES[architecture]
    source = GGUFReader(tokenizer_from)
    bare = path.with_suffix(".keys")
    finish(_writer(bare, architecture, source))
    tensors = RandomTensors(shape.seed)
    for name, lengths in shapes_of_keys(bare).items():
        _add(tensors, name, lengths)
    bare.unlink()
    # never the most probable token: texts would end early
    end = source.fields["tokenizer.ggml.eos_token_id"].contents()
    tensors.by_name["output.weight"][end] = 0
    writer = _writer(path, architecture, source)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, values in tensors.by_name.items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def n_layers(architecture: str) -> int:
    """Layers of a target; layer k is tapped as k, counted from 1."""
    return _SHAPES[architecture].n_layer


def _writer(path: Path, architecture: str, tokenizer: GGUFReader) -> GGUFWriter:
    shape = _SHAPES[architecture]
    writer = GGUFWriter(path, architecture)
    write_keys(writer, architecture, {**_KEYS, "block_count": shape.n_layer, **shape.keys})
    copy_tokenizer(writer, tokenizer)
    return writer


def shapes_of_keys(bare: Path) -> dict[str, tuple[int, ...]]:
    """The tensors llama.cpp makes for a file without any, the longest side last."""
    ggml = ggml_base()
    found: dict[str, tuple[int, ...]] = {}

    def on_tensor(tensor: int, _data: int) -> None:
        # type and buffer come before the lengths
        lengths = (ctypes.c_int64 * 4).from_address(tensor + 16)
        name = ggml.ggml_get_name(tensor).decode()
        found[name] = tuple(lengths[: ggml.ggml_n_dims(tensor)])[::-1]

    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    keys = ggml.gguf_init_from_file(str(bare).encode(), GgufParams(True, None))
    callback = llama_cpp.llama_model_set_tensor_data_t(on_tensor)
    model = llama_cpp.llama_model_init_from_user(keys, callback, None, params)
    assert model is not None, f"llama.cpp makes no model of the keys in {bare.name}"
    llama_cpp.llama_model_free(model)
    ggml.gguf_free(keys)
    return found


def _add(tensors: RandomTensors, name: str, lengths: tuple[int, ...]) -> None:
    if name == "token_embd.weight":
        tensors.add(name, *lengths, mean=0.0, deviation=1.0)
    elif "norm" in name and name.endswith(".weight"):
        tensors.add(name, *lengths, mean=1.0, deviation=0.2)
    elif len(lengths) > 1 and min(lengths) > 1:
        tensors.matrix(name, *lengths)
    else:
        tensors.add(name, *lengths, mean=0.0, deviation=0.5)
    if "ssm_a" in name:  # a decay
        values: Weights = tensors.by_name[name]
        np.negative(np.abs(values), out=values)


_KEYS: dict[str, Key] = {
    "vocab_size": 160,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-6,
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
}

_EXPERTS: dict[str, Key] = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 48,
    "expert_shared_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.0,
}
_DELTA: dict[str, Key] = {
    "full_attention_interval": 2,
    "ssm.inner_size": 64,
    "ssm.time_step_rank": 4,
}
_SECTIONS: dict[str, Key] = {"rope.dimension_sections": [2, 3, 3, 0]}
_ALTERNATING: dict[str, Key] = {"attention.head_count_kv": [0, 2, 0, 2]}
_RWKV: dict[str, Key] = {
    "wkv.head_size": 64,
    "attention.decay_lora_rank": 8,
    "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 8,
    "token_shift_count": 2,
}

_LATENT: dict[str, Key] = {
    "attention.head_count": [4, 4, 4, 4],
    "attention.head_count_kv": [0, 1, 0, 1],
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "attention.kv_lora_rank": 32,
    "kda.head_dim": 16,
    "leading_dense_block_count": 1,
}
_STREAMS: dict[str, Key] = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
}

_SHAPES = {
    "qwen35": _Shape(keys={**_DELTA, **_SECTIONS}, seed=13),
    "qwen35moe": _Shape(keys={**_DELTA, **_SECTIONS, **_EXPERTS}),
    "qwen3next": _Shape(keys={**_DELTA, **_EXPERTS}),
    "lfm2": _Shape(keys={**_ALTERNATING, "shortconv.l_cache": 3}),
    "mamba": _Shape(seed=8),
    "mamba2": _Shape(),
    "falcon-h1": _Shape(),
    "granitehybrid": _Shape(keys=_ALTERNATING, seed=17),
    "jamba": _Shape(keys=_ALTERNATING),
    "rwkv7": _Shape(keys=_RWKV),
    "nemotron_h": _Shape(
        keys={"attention.head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 96, 0]},
        seed=13,
    ),
    "minimax-01": _Shape(keys={"full_attention_interval": 2, "residual_scale": 2.0, **_EXPERTS}),
    "kimi-linear": _Shape(keys={**_LATENT, **_EXPERTS, "rope.dimension_count": 16}),
    "glm5-next": _Shape(
        keys={
            **_LATENT,
            **_EXPERTS,
            **_STREAMS,
            "attention.head_count": 4,
            "attention.key_length": 32,
            "rope.dimension_count": 0,
            "attention.q_lora_rank": 32,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 32,
            "attention.indexer.top_k": 8,
            "attention.indexer.kpool": 4,
            "attention.indexer.kpool_select_tail": True,
            "ple.layers": [0],
        }
    ),
    "lfm2moe": _Shape(
        keys={
            **_ALTERNATING,
            **_EXPERTS,
            "shortconv.l_cache": 3,
            "leading_dense_block_count": 1,
        }
    ),
    "rwkv6": _Shape(
        keys={
            **_RWKV,
            "attention.head_count": 1,
            "attention.head_count_kv": 1,
            "time_mix_extra_dim": 8,
            "time_decay_extra_dim": 8,
        }
    ),
    "arwkv7": _Shape(keys={**_RWKV, "token_shift_count": 1}),
    "bailingmoe3": _Shape(
        keys={
            **_LATENT,
            **_EXPERTS,
            **_SECTIONS,
            "attention.q_lora_rank": 32,
            "expert_weights_norm": True,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "kda.safe_gate": True,
            "kda.gate_lower_bound": -5.0,
        }
    ),
    "kimi-k3": _Shape(
        keys={
            **_LATENT,
            **_EXPERTS,
            "attention.q_lora_rank": 32,
            "expert_latent_length": 48,
            "kda.gate_lower_bound": -5.0,
            "attn_res.block_size": 12,
            "activation.situ_beta": 4.0,
            "activation.situ_linear_beta": 25.0,
        }
    ),
    "deepseek4": _Shape(
        keys={
            **_EXPERTS,
            **_STREAMS,
            "attention.head_count": 8,
            "attention.head_count_kv": 1,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "rope.dimension_count": 32,
            "attention.q_lora_rank": 32,
            "attention.sliding_window": 32,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 8,
            "attention.output_group_count": 8,
            "attention.output_lora_rank": 32,
            "attention.compress_ratios": [0, 0, 4, 128],
            "attention.compress_rope_freq_base": 160000.0,
            "hash_layer_count": 0,
            "swiglu_clamp_exp": 10.0,
            "expert_gating_func": 4,
            "expert_weights_norm": True,
        }
    ),
}

ARCHITECTURES = tuple(_SHAPES)
