"""Targets with random weights, one for each way in which architectures differ for a drafter: what
computes a layer's output and in which shape, windows, soft caps, experts, biases.

Each is of another make than a Llama, and all have the hidden size of the fixture target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from tests.tools.gguf_files import copy_tokenizer, finish
from tests.tools.tiny_gguf import Key, RandomTensors, write_keys

WINDOW = 16
"""Shorter than the tests' sequences, so that a sliding window drops tokens."""

_QUANTISED = GGMLQuantizationType.Q8_0


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """An architecture. Keys are named without it."""

    layer: Callable[[RandomTensors, _Shape, str], None]  # adds a layer's tensors, given "blk.<i>."
    rest: Callable[[RandomTensors, _Shape, int], None] = lambda tensors, shape, n_vocab: None
    n_layer: int = 4
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    embedding: float = 1.0  # magnitude of the token embeddings
    keys: Mapping[str, Key] = field(default_factory=dict)
    is_quantised: bool = False  # for files that would be large
    seed: int = 1  # chosen so that greedy texts vary and no two best logits are nearly equal


def write_tiny_target(
    path: Path,
    architecture: str,
    *,
    tokenizer_from: Path,
    head_size: int | None = None,
    window: int | None = None,
) -> Path:
    """Write a target with another target's tokenizer, so that a drafter for that one fits this one
    too. The same arguments give the same bytes. head_size: another one than the architecture's,
    and a hidden size that follows from it. window: another one than WINDOW. Returns `path`."""
    shape = _SHAPES[architecture]
    if window is not None:
        shape = replace(shape, keys={**shape.keys, "attention.sliding_window": window})
    if head_size is not None:
        shape = replace(shape, head_dim=head_size, n_embd=shape.n_head * head_size)
    source = GGUFReader(tokenizer_from)
    writer = GGUFWriter(path, architecture)
    write_keys(writer, architecture, _keys(shape))
    n_vocab = copy_tokenizer(writer, source)
    tensors = _tensors(shape, n_vocab).by_name
    # never the most probable token: texts would end early
    tensors["output.weight"][source.fields["tokenizer.ggml.eos_token_id"].contents()] = 0
    for name, values in tensors.items():
        if shape.is_quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(name, quants.quantize(values, _QUANTISED), raw_dtype=_QUANTISED)
        else:
            writer.add_tensor(name, values)
    finish(writer)
    return path


def n_layers(architecture: str) -> int:
    """Layers of a target; layer k is tapped as k, counted from 1."""
    return _SHAPES[architecture].n_layer


def _keys(shape: _Shape) -> dict[str, Key]:
    keys: dict[str, Key] = {
        "context_length": 512,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": shape.head_dim // 2 * 2,
        "rope.freq_base": 10000.0,
    }
    return keys | dict(shape.keys)


def _tensors(shape: _Shape, n_vocab: int) -> RandomTensors:
    tensors = RandomTensors(shape.seed)
    tensors.add("token_embd.weight", n_vocab, shape.n_embd, mean=0.0, deviation=shape.embedding)
    tensors.norm("output_norm.weight", shape.n_embd)
    # not tied: a random tied head keeps repeating the last token
    tensors.matrix("output.weight", n_vocab, shape.n_embd)
    shape.rest(tensors, shape, n_vocab)
    for i in range(shape.n_layer):
        shape.layer(tensors, shape, f"blk.{i}.")
    return tensors


# -- Parts of layers -----------------------------------------------------------------------------


def _attention(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    tensors.norm(f"{block}attn_norm.weight", shape.n_embd)
    tensors.matrix(f"{block}attn_q.weight", n_q, shape.n_embd)
    tensors.matrix(f"{block}attn_k.weight", n_kv, shape.n_embd)
    tensors.matrix(f"{block}attn_v.weight", n_kv, shape.n_embd)
    tensors.matrix(f"{block}attn_output.weight", shape.n_embd, n_q)


def _head_norms(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    tensors.norm(f"{block}attn_q_norm.weight", shape.head_dim)
    tensors.norm(f"{block}attn_k_norm.weight", shape.head_dim)


def _post_norms(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    tensors.norm(f"{block}post_attention_norm.weight", shape.n_embd)
    tensors.norm(f"{block}post_ffw_norm.weight", shape.n_embd)


def _feed_forward(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    tensors.norm(f"{block}ffn_norm.weight", shape.n_embd)
    tensors.matrix(f"{block}ffn_gate.weight", shape.n_ff, shape.n_embd)
    tensors.matrix(f"{block}ffn_up.weight", shape.n_ff, shape.n_embd)
    tensors.matrix(f"{block}ffn_down.weight", shape.n_embd, shape.n_ff)


def _per_layer_input(tensors: RandomTensors, shape: _Shape, block: str, width: int) -> None:
    tensors.matrix(f"{block}inp_gate.weight", width, shape.n_embd)
    tensors.matrix(f"{block}proj.weight", shape.n_embd, width)
    tensors.norm(f"{block}post_norm.weight", shape.n_embd)


def _per_layer_embeddings(tensors: RandomTensors, shape: _Shape, n_vocab: int, width: int) -> None:
    tensors.matrix("per_layer_token_embd.weight", n_vocab, width * shape.n_layer)
    tensors.matrix("per_layer_model_proj.weight", width * shape.n_layer, shape.n_embd)
    tensors.norm("per_layer_proj_norm.weight", width)


# -- Architectures -------------------------------------------------------------------------------


def _qwen2(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _attention(tensors, shape, block)
    for kind, n_heads in (("q", shape.n_head), ("k", shape.n_head_kv), ("v", shape.n_head_kv)):
        width = n_heads * shape.head_dim
        tensors.add(f"{block}attn_{kind}.bias", width, mean=0.0, deviation=0.2)
    _feed_forward(tensors, shape, block)


def _qwen2_rest(tensors: RandomTensors, shape: _Shape, n_vocab: int) -> None:
    tensors.add("output.bias", n_vocab, mean=0.0, deviation=0.5)


def _qwen3(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _attention(tensors, shape, block)
    _head_norms(tensors, shape, block)
    _feed_forward(tensors, shape, block)


def _experts(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    tensors.matrix(f"{block}ffn_gate_inp.weight", _N_EXPERT, shape.n_embd)
    tensors.matrix(f"{block}ffn_gate_exps.weight", _N_EXPERT, _N_FF_EXPERT, shape.n_embd)
    tensors.matrix(f"{block}ffn_up_exps.weight", _N_EXPERT, _N_FF_EXPERT, shape.n_embd)
    tensors.matrix(f"{block}ffn_down_exps.weight", _N_EXPERT, shape.n_embd, _N_FF_EXPERT)


def _qwen3moe(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _attention(tensors, shape, block)
    _head_norms(tensors, shape, block)
    tensors.norm(f"{block}ffn_norm.weight", shape.n_embd)
    _experts(tensors, shape, block)


def _gpt_oss(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    """Sinks, and experts with biases."""
    _attention(tensors, shape, block)
    tensors.add(f"{block}attn_sinks.weight", shape.n_head, mean=0.0, deviation=1.0)
    tensors.norm(f"{block}post_attention_norm.weight", shape.n_embd)
    _experts(tensors, shape, block)
    for name, lengths in (
        ("attn_output", (shape.n_embd,)),
        ("ffn_gate_inp", (_N_EXPERT,)),
        ("ffn_gate_exps", (_N_EXPERT, _N_FF_EXPERT)),
        ("ffn_up_exps", (_N_EXPERT, _N_FF_EXPERT)),
        ("ffn_down_exps", (_N_EXPERT, shape.n_embd)),
    ):
        tensors.add(f"{block}{name}.bias", *lengths, mean=0.0, deviation=0.1)


def _phi3(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    """Projections that belong together are one matrix."""
    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    tensors.norm(f"{block}attn_norm.weight", shape.n_embd)
    tensors.matrix(f"{block}attn_qkv.weight", n_q + 2 * n_kv, shape.n_embd)
    tensors.matrix(f"{block}attn_output.weight", shape.n_embd, n_q)
    tensors.norm(f"{block}ffn_norm.weight", shape.n_embd)
    tensors.matrix(f"{block}ffn_up.weight", 2 * shape.n_ff, shape.n_embd)
    tensors.matrix(f"{block}ffn_down.weight", shape.n_embd, shape.n_ff)


def _gptneox(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    """Attention and feed-forward side by side, everything with a bias."""
    n_embd = shape.n_embd
    for name, rows, columns in (
        ("attn_qkv", 3 * n_embd, n_embd),
        ("attn_output", n_embd, n_embd),
        ("ffn_up", shape.n_ff, n_embd),
        ("ffn_down", n_embd, shape.n_ff),
    ):
        tensors.matrix(f"{block}{name}.weight", rows, columns)
        tensors.add(f"{block}{name}.bias", rows, mean=0.0, deviation=0.05)
    for name in ("attn_norm", "ffn_norm"):
        tensors.norm(f"{block}{name}.weight", n_embd)
        tensors.add(f"{block}{name}.bias", n_embd, mean=0.0, deviation=0.05)


def _gptneox_rest(tensors: RandomTensors, shape: _Shape, n_vocab: int) -> None:
    tensors.add("output_norm.bias", shape.n_embd, mean=0.0, deviation=0.05)


def _gemma3(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _attention(tensors, shape, block)
    _head_norms(tensors, shape, block)
    _feed_forward(tensors, shape, block)
    _post_norms(tensors, shape, block)


def _gemma3n(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _gemma3(tensors, shape, block)
    _per_layer_input(tensors, shape, block, _GEMMA3N_PER_LAYER)
    tensors.matrix(f"{block}laurel_l.weight", _GEMMA3N_RANK, shape.n_embd)
    tensors.matrix(f"{block}laurel_r.weight", shape.n_embd, _GEMMA3N_RANK)
    tensors.norm(f"{block}laurel_post_norm.weight", shape.n_embd)
    tensors.matrix(f"{block}altup_correct_coef.weight", _GEMMA3N_STREAMS, _GEMMA3N_STREAMS)
    tensors.norm(f"{block}altup_correct_scale.weight", shape.n_embd)
    tensors.matrix(f"{block}altup_predict_coef.weight", _GEMMA3N_STREAMS**2, _GEMMA3N_STREAMS)
    tensors.matrix(f"{block}altup_router.weight", _GEMMA3N_STREAMS, shape.n_embd)
    tensors.norm(f"{block}altup_router_norm.weight", shape.n_embd)


def _gemma3n_rest(tensors: RandomTensors, shape: _Shape, n_vocab: int) -> None:
    _per_layer_embeddings(tensors, shape, n_vocab, _GEMMA3N_PER_LAYER)
    for name in ("altup_proj", "altup_unembd_proj"):
        tensors.matrix(f"{name}.weight", _GEMMA3N_STREAMS - 1, shape.n_embd, shape.n_embd)


def _gemma4(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _gemma3(tensors, shape, block)
    _per_layer_input(tensors, shape, block, _GEMMA4_PER_LAYER)
    tensors.add(f"{block}layer_output_scale.weight", 1, mean=0.7, deviation=0.1)


def _gemma4_rest(tensors: RandomTensors, shape: _Shape, n_vocab: int) -> None:
    _per_layer_embeddings(tensors, shape, n_vocab, _GEMMA4_PER_LAYER)
    tensors.add("rope_freqs.weight", shape.head_dim // 2, mean=2.0, deviation=0.3)


def _muse_glimmer(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    _gemma3(tensors, shape, block)
    n_q = shape.n_head * shape.head_dim
    tensors.matrix(f"{block}attn_gate.weight", n_q, shape.n_embd)


def _hy_v4(tensors: RandomTensors, shape: _Shape, block: str) -> None:
    """Keys and values as one latent vector, and a gate before the output projection."""
    n_embd, n_head = shape.n_embd, shape.n_head
    tensors.norm(f"{block}attn_norm.weight", n_embd)
    tensors.add(f"{block}attn_sinks.weight", n_head, mean=0.0, deviation=1.0)
    tensors.matrix(f"{block}attn_q_a.weight", _HY_V4_LATENT, n_embd)
    tensors.norm(f"{block}attn_q_a_norm.weight", _HY_V4_LATENT)
    tensors.matrix(f"{block}attn_q_b.weight", n_head * 2 * shape.head_dim, _HY_V4_LATENT)
    tensors.matrix(f"{block}attn_kv_a_mqa.weight", _HY_V4_LATENT + shape.head_dim, n_embd)
    tensors.norm(f"{block}attn_kv_a_norm.weight", _HY_V4_LATENT)
    tensors.matrix(f"{block}attn_k_b.weight", n_head, _HY_V4_LATENT, shape.head_dim)
    tensors.matrix(f"{block}attn_v_b.weight", n_head, shape.head_dim, _HY_V4_LATENT)
    tensors.matrix(f"{block}attn_output.weight", n_embd, n_head * shape.head_dim)
    tensors.matrix(f"{block}attn_gate.weight", n_head * shape.head_dim, n_embd)
    for name in ("hc_attn", "hc_ffn"):
        tensors.matrix(f"{block}{name}_fn.weight", 2 * _HY_V4_STREAMS, _HY_V4_STREAMS * n_embd)
        tensors.add(f"{block}{name}_base.weight", 2 * _HY_V4_STREAMS, mean=0.0, deviation=1.0)
        tensors.norm(f"{block}{name}_scale.weight", 2)
    _feed_forward(tensors, shape, block)


def _hy_v4_rest(tensors: RandomTensors, shape: _Shape, n_vocab: int) -> None:
    tensors.matrix("output_hc_fn.weight", _HY_V4_STREAMS, _HY_V4_STREAMS * shape.n_embd)
    tensors.add("output_hc_base.weight", _HY_V4_STREAMS, mean=0.0, deviation=1.0)
    tensors.norm("output_hc_scale.weight", 1)


_N_EXPERT, _N_FF_EXPERT = 4, 48
_EXPERT_KEYS: dict[str, Key] = {
    "expert_count": _N_EXPERT,
    "expert_used_count": 2,
    "expert_feed_forward_length": _N_FF_EXPERT,
}
_GEMMA4_PER_LAYER = 8
_GEMMA3N_PER_LAYER, _GEMMA3N_RANK, _GEMMA3N_STREAMS = 256, 64, 4  # constants of llama.cpp's
_HY_V4_STREAMS, _HY_V4_LATENT = 4, 32

_SHAPES = {
    "qwen2": _Shape(layer=_qwen2, rest=_qwen2_rest, seed=11),
    "qwen3": _Shape(layer=_qwen3, seed=9),
    "qwen3moe": _Shape(layer=_qwen3moe, seed=2, keys=_EXPERT_KEYS),
    "gpt-oss": _Shape(
        layer=_gpt_oss, seed=2, keys={**_EXPERT_KEYS, "attention.sliding_window": WINDOW}
    ),
    "phi3": _Shape(layer=_phi3, seed=5),
    "gptneox": _Shape(
        layer=_gptneox,
        seed=15,
        rest=_gptneox_rest,
        n_head_kv=4,
        keys={"use_parallel_residual": True, "attention.layer_norm_epsilon": 1e-5},
    ),
    "gemma3": _Shape(
        layer=_gemma3, seed=14, embedding=0.125, keys={"attention.sliding_window": WINDOW}
    ),
    # a layer's output is a concatenation of streams
    "gemma3n": _Shape(
        layer=_gemma3n,
        seed=15,
        rest=_gemma3n_rest,
        embedding=0.125,
        n_layer=22,  # llama.cpp wants more than 20
        n_head=2,
        n_head_kv=1,
        n_ff=32,
        keys={"attention.sliding_window": WINDOW, "final_logit_softcapping": 30.0},
        is_quantised=True,
    ),
    # a layer's output is scaled
    "gemma4": _Shape(
        layer=_gemma4,
        seed=15,
        rest=_gemma4_rest,
        embedding=0.125,
        n_layer=6,
        keys={
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "rope.dimension_count_swa": 16,
            "attention.shared_kv_layers": 0,
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True, True, True, True, False, True],
            "embedding_length_per_layer_input": _GEMMA4_PER_LAYER,
            "final_logit_softcapping": 30.0,
        },
    ),
    "muse-glimmer": _Shape(
        layer=_muse_glimmer,
        seed=9,
        keys={
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True, True, False, True],
            "final_logit_softcapping": 30.0,
            "logit_scale": 0.8,
        },
    ),
    "hy_v4": _Shape(
        layer=_hy_v4,
        rest=_hy_v4_rest,
        n_head_kv=1,
        keys={
            "attention.q_lora_rank": _HY_V4_LATENT,
            "attention.kv_lora_rank": _HY_V4_LATENT,
            "attention.key_length": _HY_V4_LATENT + 16,
            "attention.value_length": _HY_V4_LATENT,
            "attention.key_length_mla": 32,
            "attention.value_length_mla": 16,
            "hyper_connection.count": _HY_V4_STREAMS,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 2.0,
            "leading_dense_block_count": 4,  # no experts, which the keys are about nevertheless
            "expert_count": _N_EXPERT,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": _N_FF_EXPERT,
        },
    ),
}

OF_STREAMS = "hy_v4"
"""Whose layers' outputs are several hidden states per token: [n_embd, 4, n_tokens]."""

ARCHITECTURES = tuple(name for name in _SHAPES if name != OF_STREAMS)
"""Those whose layers' outputs are one hidden state per token."""
