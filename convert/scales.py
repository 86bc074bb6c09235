"""What a target makes of its embeddings and logits, and what that means for a drafter that shares
them and whose configuration says nothing.

llama.cpp and Transformers call the architectures alike, so names are told by how they begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .config import DrafterConfig

_SQUARE_ROOT = ("gemma", "afmoe")  # of the hidden size
_STATED = ("granite", "minicpm", "grok", "hrm")
_UNLESS_STATED = {"minicpm": 12.0, "minicpm3": 12.0, "grok": 78.38367176906169}


@dataclass(frozen=True, slots=True)
class TargetScales:
    """embedding: what token embeddings are multiplied with, 1 for nothing. logits: what is done to
    the logits, in words; empty for nothing."""

    embedding: float
    logits: str


def find_scales(name: str, n_embd: int, get: Callable[[str], Any]) -> TargetScales:
    """Of the architecture `name`. get: a hyper-parameter under llama.cpp's name, or None."""
    embedding = 1.0
    if name.startswith(_SQUARE_ROOT):
        embedding = math.sqrt(n_embd)
    elif name.startswith(_STATED):
        embedding = _number(get("embedding_scale")) or _UNLESS_STATED.get(name, 1.0)
    keys = ("logit_scale", "final_logit_softcapping")
    stated = [(key, _number(get(key))) for key in keys]
    logits = [f"{key} {value:g}" for key, value in stated if value not in (0.0, 1.0)]
    return TargetScales(embedding, ", ".join(logits))


def settle_scales(
    config: DrafterConfig, target: TargetScales, *, shares_embeddings: bool, shares_head: bool
) -> DrafterConfig:
    """The configuration with what it leaves open decided, and said in its `decisions`."""
    decisions = list(config.decisions)
    scale = config.embedding_scale
    if shares_embeddings and scale is None and target.embedding != 1.0:
        scale = target.embedding
        decisions.append(
            f"embedding scale {scale:g}: the target's, because input_embedding_scale is missing. "
            "Add it to config.json (1.0: none) if the drafter was trained with another"
        )
    is_open = config.logit_scale is None and config.softcap is None
    if shares_head and config.selector is not None and is_open and target.logits:
        decisions.append(
            f"logits as the head gives them, not as the target's ({target.logits}): "
            "output_multiplier and final_logit_softcapping are missing. Add them to config.json "
            "if the drafter was trained with them"
        )
    return replace(config, embedding_scale=scale, decisions=tuple(decisions))


def _number(value: Any) -> float:
    """A hyper-parameter's value; 0 if there is none, as in llama.cpp."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else 0.0
