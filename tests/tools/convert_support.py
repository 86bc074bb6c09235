"""Small checkpoints for the converter's tests: read a fixture, change it, write it back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "fixtures"
TARGET = FIXTURES / "tiny-target" / "target-f32.gguf"
DRAFTERS = ("tiny-plain", "tiny-window", "tiny-softcap", "tiny-v1")

Array = npt.NDArray[Any]
_NAMES = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "u2": "BF16", "u1": "U8"}


def read_safetensors(path: Path) -> dict[str, Array]:
    """All tensors of a file, copied; BF16 as 16-bit patterns."""
    raw = path.read_bytes()
    (n_header,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + n_header])
    header.pop("__metadata__", None)
    kinds = {name: kind for kind, name in _NAMES.items()}
    return {
        name: np.frombuffer(
            raw[8 + n_header :][entry["data_offsets"][0] : entry["data_offsets"][1]],
            "<" + kinds[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


def write_safetensors(
    path: Path, tensors: Mapping[str, Array], dtypes: Mapping[str, str] | None = None
) -> None:
    """Write tensors in the given order; 16-bit unsigned arrays become BF16.

    dtypes: of tensors whose type NumPy does not have, given as integers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": (dtypes or {}).get(name) or _NAMES[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def to_bf16(values: Array) -> Array:
    """Float32 as BF16 bit patterns, cut off: exact only for values that fit."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@dataclass
class Drafter:
    """A checkpoint in memory."""

    config: dict[str, Any]
    tensors: dict[str, Array]
    dtypes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Drafter:
        """Read one of the fixtures."""
        folder = FIXTURES / name
        return cls(
            json.loads((folder / "config.json").read_text()),
            read_safetensors(folder / "model.safetensors"),
        )

    def save(self, folder: Path) -> Path:
        """Write config and a single weight file; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.tensors, self.dtypes)
        return folder

    def save_shards(self, folder: Path, stem: str, n_shards: int) -> Path:
        """Write config, shards with any stem and their index; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        weight_map: dict[str, str] = {}
        names = list(self.tensors)
        for number in range(n_shards):
            file = f"{stem}-{number + 1:05}-of-{n_shards:05}.safetensors"
            part = {name: self.tensors[name] for name in names[number::n_shards]}
            write_safetensors(folder / file, part)
            weight_map |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    def to_speculators(self) -> Drafter:
        """The same drafter in the speculators layout, with the extras such exports carry."""
        draft = self.config["dflash_config"]
        moved = ("architectures", "dflash_config", "is_causal", "num_target_layers")
        body = {k: v for k, v in self.config.items() if k not in moved}
        sliding = "sliding_attention" in body["layer_types"]
        config: dict[str, Any] = {
            "architectures": self.config["architectures"],
            "speculators_model_type": "dflash2" if "conv_kernel_size" in draft else "dflash",
            "speculators_version": "0.5.0",
            "speculators_config": {"algorithm": "dflash2", "verifier": {"name_or_path": "x/y"}},
            "transformer_layer_config": body,
            "aux_hidden_state_layer_ids": [k + 1 for k in draft["target_layer_ids"]],
            "draft_vocab_size": body["vocab_size"],
            "target_hidden_size": None,
            "sample_from_anchor": False,
            "sliding_window_non_causal": sliding,
            "max_anchors": 3072,
            **{k: v for k, v in draft.items() if k != "target_layer_ids"},
        }
        hidden, vocab = body["hidden_size"], body["vocab_size"]
        extras: dict[str, Array] = {
            "embed_tokens.weight": np.ones((vocab, hidden), np.float32),
            "lm_head.weight": np.ones((vocab, hidden), np.float32),
            "verifier_lm_head.weight": np.ones((vocab, hidden), np.float32),
            "verifier_norm.weight": np.ones(hidden, np.float32),
        }
        return Drafter(config, self.tensors | extras)


GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}
_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
for _layer in range(2):
    for _hf, _gguf in _LAYER_NAMES.items():
        GGUF_NAMES[f"layers.{_layer}.{_hf}"] = f"blk.{_layer}.{_gguf}"


def _rich() -> Drafter:
    """DFlash2 with every optional key, YaRN, interleaved rope, own embeddings, head and sinks."""
    drafter = Drafter.load("tiny-plain")
    draft = drafter.config["dflash_config"]
    drafter.config["block_size"] = draft.pop("block_size")
    del drafter.config["is_causal"]
    draft |= {
        "causal": True,
        "use_swa": True,
        "swa_window_size": 16,
        "attention_value_scale": 0.5,
        "output_multiplier": 0.25,
        "final_logit_softcapping": 30.0,
        "input_embedding_scale": 8.0,
    }
    drafter.config["rope_is_neox_style"] = False
    drafter.config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": 50000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "attention_factor": 1.25,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    renamed = {}
    for name, values in drafter.tensors.items():
        renamed[f"model.{name}" + (".weight" if name.endswith("codebook") else "")] = values
    random = np.random.default_rng(11)
    for name, shape in (
        ("embed_tokens.weight", (160, 64)),
        ("lm_head.weight", (160, 64)),
        ("layers.0.self_attn.sinks", (4,)),
        ("layers.1.self_attn.sinks", (4,)),
    ):
        renamed[name] = random.standard_normal(shape, np.float32)
    drafter.tensors = renamed
    return drafter


def _old() -> Drafter:
    """DFlash v1 with the older places for keys, linear scaling and one sliding layer."""
    drafter = Drafter.load("tiny-v1")
    del drafter.config["rope_parameters"]
    drafter.config |= {
        "block_size": drafter.config["dflash_config"].pop("block_size"),
        "rope_theta": 20000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "is_causal": True,
        "use_sliding_window": True,
        "sliding_window": 32,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    return drafter


def _idle_window() -> Drafter:
    """A window that no layer uses, and a head of its own without embeddings."""
    drafter = Drafter.load("tiny-window")
    drafter.config["layer_types"] = ["full_attention"] * 2
    drafter.config["has_embed_tokens"] = False
    random = np.random.default_rng(12)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        drafter.tensors[name] = random.standard_normal((160, 64), np.float32)
    return drafter


VARIANTS: dict[str, Callable[[], Drafter]] = {
    "variant-rich": _rich,
    "variant-old": _old,
    "variant-idle-window": _idle_window,
}
MROPE_SECTIONS = [4, 2, 2]


def mrope_target(path: Path) -> Path:
    """Write the tiny target's header, without weights, with M-RoPE sections; returns `path`."""
    from convert.gguf_read import GgufFile
    from convert.gguf_write import array, write_header
    from convert.target import copy_value

    key = "llama.rope.dimension_sections"
    sections = array(key, GGUFValueType.INT32, [*MROPE_SECTIONS, 0])
    with GgufFile(TARGET) as file, path.open("wb") as out:
        write_header(out, [*(copy_value(file, name) for name in file.values), sections], [])
    return path
