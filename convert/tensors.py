"""The tensor map: what a checkpoint must hold, under which GGUF name and in which shape."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from .config import DrafterConfig
from .dtypes import SCALED_DTYPES
from .errors import ConversionError
from .ggml_types import I64, GgmlType
from .quantise import OutType, choose_kind
from .safetensors import Checkpoint, TensorInfo
from .stored import find_stored

Shape = tuple[int, ...]

_IGNORED = (
    (re.compile(r"^(verifier_.*|t2d)$"), "training only"),
    (re.compile(r"rotary_emb\.inv_freq$"), "derived from rope_theta"),
)
_DSPARK = re.compile(r"^(markov_head|confidence_head|markov_w[12]|conf_proj)\b")
_DFLASH2 = re.compile(r"(attention_conv|mlp_conv|candidate_selector)\.")
_CODEBOOK = re.compile(r"^candidate_selector\.(predecessor|successor)_codebook\.weight$")
_OTHER_NAMES = {  # those of Muse Glimmer's assistant
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_SINK = re.compile(r"^layers\.(\d+)\.(self_attn\.)?(sinks?|attention_sink_bias)(\.weight)?$")
_BIAS = re.compile(r"^layers\.(\d+)\.self_attn\.([qkvo])_proj\.bias$")
_BIAS_NAMES = {"q": "attn_q.bias", "k": "attn_k.bias", "v": "attn_v.bias", "o": "attn_output.bias"}
_ROTATED = re.compile(r"self_attn\.[qk]_(proj|norm)\.(weight|bias)$")
_WEIGHT_SCALE = re.compile(r"^(.*)(_scale|_scale_inv)$")
_ACTIVATION_SCALE = re.compile(r"\.(input|activation|q|k|v|prob)_scale(_ub)?$")


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor's way from checkpoint to file.

    `hf_shape` is outermost first, `shape` innermost first as ggml counts. `head_dim` is set when
    the rows (elements of a norm) must be reordered from interleaved to NeoX pairing within heads of
    that size.
    """

    hf_name: str
    hf_dtype: str
    hf_shape: Shape
    name: str
    shape: Shape
    kind: GgmlType
    note: str
    head_dim: int | None = None


@dataclass(frozen=True, slots=True)
class IgnoredTensor:
    """A tensor of the checkpoint that does not go into the file, and why."""

    hf_name: str
    hf_shape: Shape
    reason: str


def _expected(config: DrafterConfig) -> dict[str, tuple[str, Shape]]:
    """HF name (without a leading `model.`) -> GGUF name and HF shape, for all required tensors."""
    width, ff, head = config.n_embd, config.n_ff, config.head_dim
    n_q, n_kv = config.n_head * head, config.n_head_kv * head
    result: dict[str, tuple[str, Shape]] = {
        "fc.weight": ("fc.weight", (width, len(config.target_layers) * width)),
        "hidden_norm.weight": ("enc.output_norm.weight", (width,)),
    }
    per_layer: dict[str, tuple[str, Shape]] = {
        "input_layernorm.weight": ("attn_norm.weight", (width,)),
        "self_attn.q_proj.weight": ("attn_q.weight", (n_q, width)),
        "self_attn.k_proj.weight": ("attn_k.weight", (n_kv, width)),
        "self_attn.v_proj.weight": ("attn_v.weight", (n_kv, width)),
        "self_attn.o_proj.weight": ("attn_output.weight", (width, n_q)),
        "self_attn.q_norm.weight": ("attn_q_norm.weight", (head,)),
        "self_attn.k_norm.weight": ("attn_k_norm.weight", (head,)),
        "post_attention_layernorm.weight": ("ffn_norm.weight", (width,)),
        "mlp.gate_proj.weight": ("ffn_gate.weight", (ff, width)),
        "mlp.up_proj.weight": ("ffn_up.weight", (ff, width)),
        "mlp.down_proj.weight": ("ffn_down.weight", (width, ff)),
    }
    if config.convolution:
        kernel = config.convolution.kernel_size
        n_coefficients = 2 * kernel * (width // config.convolution.group_size)
        for hf, gguf in (("attention_conv", "attn_conv"), ("mlp_conv", "ffn_conv")):
            per_layer[f"{hf}.base_kernel"] = (f"{gguf}_base", (2, kernel, width))
            per_layer[f"{hf}.kernel_projection.weight"] = (
                f"{gguf}_proj.weight",
                (n_coefficients, width),
            )
    for layer in range(config.n_layers):
        for hf, (gguf, shape) in per_layer.items():
            result[f"layers.{layer}.{hf}"] = (f"blk.{layer}.{gguf}", shape)
    result["norm.weight"] = ("output_norm.weight", (width,))
    if config.selector:
        rank = config.selector.rank
        prefix = "candidate_selector."
        result[f"{prefix}hidden_projection.weight"] = ("selector_hidden.weight", (rank, width))
        for side in ("predecessor", "successor"):
            result[f"{prefix}{side}_codebook"] = (
                f"selector_{side}.weight",
                (config.vocab_size, rank),
            )
    return result


def _biases(config: DrafterConfig, names: Collection[str]) -> dict[str, tuple[str, Shape]]:
    """The biases of a drafter that has some, as in `_expected`: whether the output projection has
    one as well differs between model families, so the tensors decide."""
    is_biased = config.attention_bias
    if is_biased is None:
        is_biased = any(map(_BIAS.match, names))
    if not is_biased:
        return {}
    head = config.head_dim
    lengths = {"q": config.n_head * head, "k": config.n_head_kv * head, "o": config.n_embd}
    lengths["v"] = lengths["k"]
    kinds = "qkvo" if any(name.endswith(".o_proj.bias") for name in names) else "qkv"
    return {
        f"layers.{layer}.self_attn.{kind}_proj.bias": (
            f"blk.{layer}.{_BIAS_NAMES[kind]}",
            (lengths[kind],),
        )
        for layer in range(config.n_layers)
        for kind in kinds
    }


def canonical_name(name: str) -> str:
    """A tensor's name without what layouts put around it."""
    name = name.removeprefix("model.")
    name = _OTHER_NAMES.get(name, name)
    return name.removesuffix(".weight") if _CODEBOOK.match(name) else name


def _optional(
    config: DrafterConfig, stored: dict[str, TensorInfo], names: Iterable[str]
) -> tuple[dict[str, tuple[str, Shape]], dict[str, str]]:
    """Optional tensors that are present.

    Those to keep (as in `_expected`) and those to leave out, with why.
    """
    keep: dict[str, tuple[str, Shape]] = {}
    drop: dict[str, str] = {}
    reduced = config.draft_vocab_size != config.vocab_size
    for name in names:
        sink = _SINK.match(name)
        if name == "embed_tokens.weight":
            if config.own_embeddings:
                keep[name] = ("token_embd.weight", (config.vocab_size, config.n_embd))
            else:
                drop[name] = "copy of the target's embeddings"
        elif name == "lm_head.weight":
            if reduced or config.own_head:
                keep[name] = ("output.weight", (config.draft_vocab_size, config.n_embd))
            else:
                drop[name] = "copy of the target's head"
        elif name == "d2t" and reduced:
            keep[name] = ("d2t", (config.draft_vocab_size,))
        elif name == "d2t":
            drop[name] = "the drafter has the full vocabulary"
        elif sink and int(sink[1]) < config.n_layers:
            keep[name] = (f"blk.{int(sink[1])}.attn_sinks.weight", (config.n_head,))
        else:
            reason = next((why for pattern, why in _IGNORED if pattern.search(name)), None)
            reason = reason or _scale_reason(name, stored)
            if reason:
                drop[name] = reason
    return keep, drop


def _scale_reason(name: str, stored: dict[str, TensorInfo]) -> str | None:
    """What becomes of the scales of a checkpoint with 8-bit floats."""
    scale = _WEIGHT_SCALE.match(name)
    weight = stored.get(canonical_name(scale[1])) if scale else None
    if weight is not None and weight.dtype in SCALED_DTYPES:
        return f"multiplied into {weight.name}"
    if _ACTIVATION_SCALE.search(name) and any(t.dtype in SCALED_DTYPES for t in stored.values()):
        return "activations stay floating point"
    return None


def plan_tensors(
    checkpoint: Checkpoint, config: DrafterConfig, outtype: OutType
) -> tuple[tuple[TensorPlan, ...], tuple[IgnoredTensor, ...]]:
    """Map every tensor of the checkpoint.

    Returns the tensors to write, in file order, and those left out. Raises `ConversionError` when
    one is missing, unknown, named twice, of a wrong shape or not floating point.
    """
    stored: dict[str, TensorInfo] = {}
    for name, (_, info) in checkpoint.tensors.items():
        canonical = canonical_name(name)
        if canonical in stored:
            raise _error(checkpoint.folder, f"{stored[canonical].name!r} and {name!r} are the same")
        stored[canonical] = info
    required = _expected(config) | _biases(config, stored)
    keep, drop = _optional(config, stored, (name for name in stored if name not in required))
    _check_complete(checkpoint.folder, config, stored, required, keep, drop)
    plans = tuple(
        _plan(checkpoint, config, stored[hf], hf, name, shape, outtype)
        for hf, (name, shape) in (required | keep).items()
    )
    ignored = tuple(
        IgnoredTensor(stored[name].name, stored[name].shape, why) for name, why in drop.items()
    )
    return plans, ignored


def _error(folder: Path, what: str) -> ConversionError:
    return ConversionError(f"{folder}: {what}")


def _check_complete(
    folder: Path,
    config: DrafterConfig,
    stored: dict[str, TensorInfo],
    required: dict[str, tuple[str, Shape]],
    keep: dict[str, tuple[str, Shape]],
    drop: dict[str, str],
) -> None:
    unknown = [name for name in stored if name not in required and name not in keep | drop]
    for name in unknown:
        if _BIAS.match(name):
            raise _error(
                folder,
                f"tensor {name!r} is a bias of the attention, but attention_bias is false in "
                "config.json: set it to true if the drafter was trained with biases",
            )
        if _DSPARK.match(name):
            raise _error(
                folder, f"tensor {name!r} belongs to DSpark drafters, which are not supported"
            )
        if _DFLASH2.search(name) and config.version == 1:
            raise _error(
                folder,
                f"config.json says DFlash v1, but tensor {name!r} belongs to DFlash2: "
                "use the config.json that came with these weights",
            )
    if unknown:
        raise _error(
            folder,
            f"unknown tensor {', '.join(map(repr, unknown[:4]))} ({len(unknown)} in all) would "
            "be lost: "
            "the drafter graph has no place for it",
        )
    by_target: dict[str, str] = {}
    for name, (target, _) in (required | keep).items():
        if by_target.setdefault(target, name) != name:
            raise _error(folder, f"{by_target[target]!r} and {name!r} are the same")
    missing = [name for name in required if name not in stored]
    if missing:
        raise _error(
            folder,
            f"tensor {', '.join(map(repr, missing[:4]))} missing ({len(missing)} of "
            f"{len(required)}): "
            "the checkpoint is incomplete, or config.json belongs to another one",
        )
    reduced = config.draft_vocab_size != config.vocab_size
    if reduced and not {"lm_head.weight", "d2t"} <= keep.keys():
        raise _error(
            folder,
            f"draft_vocab_size {config.draft_vocab_size} is smaller than the vocabulary, so "
            "lm_head and "
            "d2t must be in the checkpoint",
        )


def _plan(
    checkpoint: Checkpoint,
    config: DrafterConfig,
    info: TensorInfo,
    canonical: str,
    name: str,
    shape: Shape,
    outtype: OutType,
) -> TensorPlan:
    folder = checkpoint.folder
    dtype = info.dtype
    if info.shape != shape:
        hint = ""
        if name == "fc.weight" and len(info.shape) == 2:
            hint = (
                f": fc reads {info.shape[1]} values, but {len(config.target_layers)} target "
                "layers of "
                f"{config.n_embd} make {shape[1]}"
            )
        raise _error(
            folder,
            f"tensor {info.name!r} has shape {list(info.shape)}, config.json asks for "
            f"{list(shape)}{hint}",
        )
    if name == "d2t":
        if info.dtype not in ("I64", "I32", "I16"):
            raise _error(folder, f"tensor {info.name!r} is {info.dtype}, expected integers")
        kind, note = I64, "offsets become target ids"
    else:
        dtype = find_stored(checkpoint, info.name, config.scale_block).dtype
        kind, note = choose_kind(name, shape, outtype)
    reorder = not config.rope.neox and _ROTATED.search(canonical)
    return TensorPlan(
        hf_name=info.name,
        hf_dtype=dtype,
        hf_shape=shape,
        name=name,
        shape=tuple(reversed(shape)),
        kind=kind,
        note=", ".join(filter(None, (note, "reordered to NeoX" if reorder else ""))),
        head_dim=config.head_dim if reorder else None,
    )
