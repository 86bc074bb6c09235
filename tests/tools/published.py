"""Drafters as they are published: config.json with the keys it has there, and tensors by their
names there, in bfloat16. Sizes are those of the tiny targets, weights are random.

Keys, and values that are no sizes, are those of the drafters named below: of Qwen3.8 and the second
one of Muse Glimmer as whole configurations are quoted in public, of the others as far as programs
that read them say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tools.convert_support import Drafter, to_bf16
from tests.tools.tiny_gguf import RandomTensors

N_VOCAB = 160
WINDOW = 12
"""Shorter than the tests' sequences, so that a sliding window drops tokens."""

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 5,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
}
_QWEN3: dict[str, Any] = {
    **_SIZES,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "layer_types": ["sliding_attention"] * 5,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "pad_token_id": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "transformers_version": "5.15.0",
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": N_VOCAB,
}
_DFLASH2: dict[str, Any] = {
    "conv_group_size": 16,
    "conv_kernel_size": 2,
    "selector_rank": 8,
    "selector_top_k": 4,
}
_COMMON: dict[str, Any] = {"mask_token_id": 5, "target_layer_ids": [0, 1, 2]}


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}}


@dataclass(frozen=True, kw_only=True)
class Published:
    """target: the architecture of its target."""

    target: str
    config: Mapping[str, Any]
    seed: int = 1  # chosen so that no two candidates are nearly equal
    keys: Mapping[str, Any] = field(default_factory=dict)  # which the file must have

    @property
    def block_size(self) -> int:
        return int(self.config.get("block_size") or self.config["dflash_config"]["block_size"])

    @property
    def has_mrope(self) -> bool:
        """Whether the target's positions are in planes."""
        return self.target.startswith("qwen35")

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """As in the file: layer inputs, counted from 1."""
        ids = (
            self.config.get("target_layer_ids") or self.config["dflash_config"]["target_layer_ids"]
        )
        return tuple(i + 1 for i in ids)

    def save(self, folder: Path) -> Path:
        """Writes the checkpoint; returns its folder."""
        tensors = RandomTensors(self.seed)
        width, n_ff, head_dim = 64, 96, 16
        is_assistant = self.config["architectures"] == ["MuseGlimmerAssistantModel"]
        encoder = "encoder.fc", "encoder.output_norm_enc"
        fc, norm = encoder if is_assistant else ("fc", "hidden_norm")
        tensors.matrix(f"{fc}.weight", width, len(self.layer_ids) * width)
        tensors.norm(f"{norm}.weight", width)
        tensors.norm("norm.weight", width)
        for i in range(self.config["num_hidden_layers"]):
            layer = f"layers.{i}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors.norm(f"{layer}{name}.weight", width)
            for name, rows in (("q", 4), ("k", 2), ("v", 2)):
                tensors.matrix(f"{layer}self_attn.{name}_proj.weight", rows * head_dim, width)
            tensors.matrix(f"{layer}self_attn.o_proj.weight", width, 4 * head_dim)
            for name in ("q_norm", "k_norm"):
                tensors.add(f"{layer}self_attn.{name}.weight", head_dim, mean=1.5, deviation=0.3)
            for name in ("gate", "up"):
                tensors.matrix(f"{layer}mlp.{name}_proj.weight", n_ff, width)
            tensors.matrix(f"{layer}mlp.down_proj.weight", width, n_ff)
            if self.config["architectures"] == ["DFlash2DraftModel"]:
                for name in ("attention_conv", "mlp_conv"):
                    base = f"{layer}{name}.base_kernel"
                    tensors.add(base, 2, 2, width, mean=0.5, deviation=0.3)
                    n_coefficients = 2 * 2 * (width // 16)
                    tensors.matrix(f"{layer}{name}.kernel_projection.weight", n_coefficients, width)
        if self.config["architectures"] == ["DFlash2DraftModel"]:
            tensors.matrix("candidate_selector.hidden_projection.weight", 8, width)
            for side in ("predecessor", "successor"):
                tensors.matrix(f"candidate_selector.{side}_codebook", N_VOCAB, 8)
        stored = {name: to_bf16(values) for name, values in tensors.by_name.items()}
        return Drafter(dict(self.config), stored).save(folder)


PUBLISHED = {
    "Qwen3.8-27B-DFlash2": Published(
        target="qwen35",
        config={
            "architectures": ["DFlash2DraftModel"],
            **_QWEN3,
            "is_causal": False,
            "dflash_config": {"block_size": 8, **_DFLASH2, **_COMMON},
            "num_target_layers": 4,
            **_rope(10000000),
        },
        keys={"dflash.rope.dimension_sections": [8, 0, 0, 0]},
    ),
    "GLM-5.3-Flash-DFlash2": Published(
        target="glm5-next",
        config={
            "architectures": ["DFlash2DraftModel"],
            **_QWEN3,
            "is_causal": False,
            "dflash_config": {"block_size": 8, **_DFLASH2, **_COMMON},
            "num_target_layers": 4,
            "rms_norm_eps": 1e-5,
            **_rope(10000000),
        },
    ),
    "Muse-Glimmer-30B-DFlash2": Published(
        target="muse-glimmer",
        config={
            "architectures": ["DFlash2DraftModel"],
            **_QWEN3,
            "is_causal": False,
            "dflash_config": {
                "block_size": 16,
                **_DFLASH2,
                **_COMMON,
                "final_logit_softcapping": 20.0,
                "output_multiplier": 0.19611613513818404,
            },
            "num_target_layers": 4,
            "rms_norm_eps": 1e-5,
            "use_cache": False,
            **_rope(500000.0),
        },
        keys={"dflash.logit_scale": 0.19611613513818404, "dflash.final_logit_softcapping": 20.0},
    ),
    "Muse-Glimmer-30B-assistant": Published(
        target="muse-glimmer",
        config={
            "architectures": ["MuseGlimmerAssistantModel"],
            **_SIZES,
            "model_type": "muse_glimmer_assistant",
            "dtype": "bfloat16",
            "rms_norm_eps": 1e-5,
            "layer_types": ["sliding_attention"] * 5,
            "block_size": 16,
            **_COMMON,
            **_rope(500000.0),
        },
    ),
    "Qwen3.6-27B-DFlash": Published(
        target="qwen35",
        config={
            "architectures": ["DFlashDraftModel"],
            **_QWEN3,
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "block_size": 16,
            "dflash_config": _COMMON,
            "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
            "num_target_layers": 4,
            "rope_theta": 10000000,
            "rope_scaling": None,
        },
        keys={
            "dflash.attention.causal": False,
            "dflash2.attention.causal_pattern": [True] * 4 + [False],
            "dflash.attention.sliding_window_pattern": [True] * 4 + [False],
            "dflash.rope.dimension_sections": [8, 0, 0, 0],
        },
    ),
    "Qwen3.6-35B-A3B-DFlash": Published(
        target="qwen35moe",
        config={
            "architectures": ["DFlashDraftModel"],
            **_QWEN3,
            "dflash_config": {"block_size": 16, **_COMMON},
            "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
            "num_target_layers": 4,
            **_rope(10000000),
        },
        keys={
            "dflash2.attention.causal_pattern": [True] * 4 + [False],
            "dflash.rope.dimension_sections": [8, 0, 0, 0],
        },
    ),
    "gemma-4-31B-it-DFlash": Published(
        target="gemma4",
        config={
            "architectures": ["DFlashDraftModel"],
            **_QWEN3,
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "block_size": 16,
            "dflash_config": _COMMON,
            "layer_types": ["full_attention"] * 5,
            "num_target_layers": 6,
            "rope_theta": 1000000,
            "rope_scaling": None,
            "sliding_window": None,
            "use_sliding_window": False,
        },
        keys={"dflash.embedding_scale": 8.0},  # the target's: the square root of its hidden size
    ),
}
