"""The metadata of a drafter file: upstream's keys and types, and a few of our own.

Upstream ignores keys it does not know, so `dflash2.converter.*` and `dflash2.source.revision` do no
harm.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import gguf
from gguf.constants import GGML_QUANT_VERSION, GGUFValueType

from .collect import entries, notebook
from .config import DrafterConfig
from .gguf_write import Metadata, array, scalar
from .quantise import OutType
from .target import MASK_KEY, Target
from .tensors import TensorPlan
from .vocabulary import DraftVocabulary

CONVERTER_VERSION = "2"
"""Raised whenever the same input gives other bytes than before."""

VOCABULARY_KEY = "dflash2.converter.draft_vocabulary"
"""How the draft vocabulary was chosen, in words."""

CAUSAL_PATTERN_KEY = "dflash2.attention.causal_pattern"
"""Which layers are causal, where they differ: llama.cpp's key says one for all."""

_REVISION = re.compile(r"^[0-9a-f]{40}$")
_U32 = GGUFValueType.UINT32
_F32 = GGUFValueType.FLOAT32


def build_metadata(
    folder: Path,
    config: DrafterConfig,
    target: Target,
    plans: tuple[TensorPlan, ...],
    outtype: OutType,
    vocabulary: DraftVocabulary | None,
) -> tuple[Metadata, ...]:
    """All metadata entries in file order. `vocabulary`: the one made here, if any."""
    result = [
        scalar("general.architecture", GGUFValueType.STRING, "dflash"),
        scalar("general.type", GGUFValueType.STRING, "model"),
        *_authorship(folder, sum(math.prod(plan.shape) for plan in plans)),
        *_sizes(config, target),
        scalar("general.file_type", _U32, outtype.file_type),
        scalar("general.quantization_version", _U32, GGML_QUANT_VERSION),
        *target.tokenizer,
        scalar(MASK_KEY, _U32, config.mask_token_id),
        scalar("dflash2.converter.version", GGUFValueType.STRING, CONVERTER_VERSION),
        scalar("dflash2.converter.layout", GGUFValueType.STRING, config.layout),
    ]
    if vocabulary is not None:
        result.append(scalar(VOCABULARY_KEY, GGUFValueType.STRING, vocabulary.summary))
    revision = source_revision(folder)
    if revision:
        result.append(scalar("dflash2.source.revision", GGUFValueType.STRING, revision))
    return tuple(result)


def _authorship(folder: Path, n_parameters: int) -> list[Metadata]:
    """`general.*` keys from model card and folder name, as the gguf package derives them."""
    try:
        return _card_entries(
            gguf.Metadata.load(None, folder, None, n_parameters), folder, n_parameters
        )
    except Exception:  # a malformed model card is no reason to refuse the weights
        return _card_entries(gguf.Metadata(), folder, n_parameters)


def _card_entries(card: gguf.Metadata, folder: Path, n_parameters: int) -> list[Metadata]:
    if card.name is None:
        card.name = folder.name
    if card.size_label is None:
        card.size_label = gguf.size_label(n_parameters, n_parameters, 0, 0)
    writer = notebook()
    card.set_gguf_meta_model(writer)
    return entries(writer)


def _sizes(config: DrafterConfig, target: Target) -> list[Metadata]:
    """The `dflash.*` keys."""
    counts: list[tuple[str, int | None]] = [
        ("block_count", config.n_layers),
        ("context_length", config.n_ctx),
        ("embedding_length", config.n_embd),
        ("feed_forward_length", config.n_ff),
        ("attention.head_count", config.n_head),
        ("attention.head_count_kv", config.n_head_kv),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.rope.n_rot),
        ("block_size", config.block_size),
        ("attention.sliding_window", config.window),
    ]
    if config.convolution and config.selector:
        counts += [
            ("conv_kernel_size", config.convolution.kernel_size),
            ("conv_group_size", config.convolution.group_size),
            ("selector_rank", config.selector.rank),
            ("selector_top_k", config.selector.top_k),
        ]
    numbers: list[tuple[str, float | None]] = [
        ("rope.freq_base", config.rope.theta),
        ("attention.layer_norm_rms_epsilon", config.rms_eps),
        ("attention.value_scale", config.value_scale),
        ("logit_scale", config.logit_scale),
        ("final_logit_softcapping", config.softcap),
        ("embedding_scale", config.embedding_scale),
    ]
    result = [scalar(f"dflash.{key}", _U32, value) for key, value in counts if value is not None]
    result += [scalar(f"dflash.{key}", _F32, value) for key, value in numbers if value is not None]
    result += config.rope.scaling
    result.append(scalar("dflash.attention.causal", GGUFValueType.BOOL, config.causal))
    if len(set(config.causal_layers)) > 1:
        result.append(array(CAUSAL_PATTERN_KEY, GGUFValueType.BOOL, config.causal_layers))
    if config.window is not None:
        key = "dflash.attention.sliding_window_pattern"
        result.append(array(key, GGUFValueType.BOOL, config.window_pattern))
    if target.mrope:
        # The drafter rotates by text position alone: all rotated pairs are in the first section.
        n_pairs = (config.rope.n_rot or config.head_dim) // 2
        key = "dflash.rope.dimension_sections"
        result.append(array(key, GGUFValueType.INT32, [n_pairs, 0, 0, 0]))
    if config.activation != "silu":
        key = "dflash.hidden_activation"
        result.append(scalar(key, GGUFValueType.STRING, config.activation))
    result.append(array("dflash.target_layers", GGUFValueType.INT32, config.target_layers))
    return result


def source_revision(folder: Path) -> str | None:
    """The Hugging Face commit a folder was downloaded from, if the download left a trace."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots" and _REVISION.match(resolved.name):
        return resolved.name
    trace = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    try:
        first_line = trace.read_text(encoding="utf-8")[:41].split("\n")[0].strip()
    except (OSError, ValueError):
        return None
    return first_line if _REVISION.match(first_line) else None
