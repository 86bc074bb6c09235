"""The drafter's rotary embedding, from the several places where configurations keep it."""

from __future__ import annotations

from dataclasses import dataclass

from gguf.constants import GGUFValueType

from .gguf_write import Metadata, scalar
from .keys import ConfigKeys

_IGNORED = {
    "mrope_section": "the drafter rotates by text position alone",
    "mrope_interleaved": "the drafter rotates by text position alone",
    "finetuned": "provenance",
}
_OPTIONAL_YARN = (
    (("extrapolation_factor",), "yarn_ext_factor"),
    (("attention_factor", "attn_factor"), "yarn_attn_factor"),
    (("beta_fast",), "yarn_beta_fast"),
    (("beta_slow",), "yarn_beta_slow"),
)


@dataclass(frozen=True, slots=True)
class Rope:
    """`theta` is the base; `n_rot` the rotated dimensions of a head, None when all; `neox` the
    pairing.

    `scaling` holds the metadata entries of linear or YaRN scaling, none for the plain embedding.
    """

    theta: float
    n_rot: int | None
    neox: bool
    scaling: tuple[Metadata, ...]


def _sources(keys: ConfigKeys, body: str) -> tuple[str, ...]:
    """Dotted prefixes to search, most specific first."""
    roots = (f"{body}rope_parameters.", f"{body}rope_scaling.")
    nested = tuple(f"{root}full_attention." for root in roots) + tuple(
        f"{root}sliding_attention." for root in roots
    )
    names = keys.names()
    return tuple(p for p in nested + roots if any(name.startswith(p) for name in names))


def read_rope(keys: ConfigKeys, body: str, head_dim: int) -> Rope:
    """The rotary embedding.

    Raises `ConversionError` for scalings that drafter files cannot express.
    """
    sources = _sources(keys, body)
    for name in (f"{body}rope_parameters", f"{body}rope_scaling"):
        keys.ignore(name, "null")
    _check_one_rope(keys, sources)

    def named(*names: str) -> tuple[str, ...]:
        return tuple(prefix + name for name in names for prefix in sources)

    theta = keys.need_number(
        *named("rope_theta"), f"{body}rope_theta", gguf_key="dflash.rope.freq_base"
    )
    if theta <= 0:
        raise keys.error(f"rope_theta is {theta}, expected a positive number")
    factor = keys.take_number(
        *named("partial_rotary_factor"),
        f"{body}partial_rotary_factor",
        gguf_key="dflash.rope.dimension_count",
        required=False,
    )
    n_rot = None if factor is None else int(head_dim * factor)
    if n_rot is not None and (not 0 < n_rot <= head_dim or n_rot % 2 != 0):
        raise keys.error(f"partial_rotary_factor {factor} rotates {n_rot} of {head_dim} dimensions")
    neox = keys.take_bool(
        f"{body}rope_is_neox_style", note="rows are reordered if false: drafter files are NeoX"
    )
    scaling = _scaling(keys, sources, body)
    for prefix in sources:
        for name, reason in _IGNORED.items():
            keys.ignore(prefix + name, reason)
    return Rope(theta, n_rot, neox is not False, scaling)


def _check_one_rope(keys: ConfigKeys, sources: tuple[str, ...]) -> None:
    """A drafter file has one rope for all layers; refuse two that differ."""
    for full in sources:
        sliding = full.replace("full_attention.", "sliding_attention.")
        if sliding == full or sliding not in sources:
            continue
        for name in keys.names():
            if not name.startswith(full):
                continue
            other = sliding + name.removeprefix(full)
            if keys.peek(name) != keys.peek(other):
                raise keys.error(
                    f"{name} and {other} differ, but a drafter file has one rotary embedding for "
                    "all "
                    "layers: such drafters are not supported"
                )


def _scaling(keys: ConfigKeys, sources: tuple[str, ...], body: str) -> tuple[Metadata, ...]:
    names = tuple(prefix + name for name in ("rope_type", "type") for prefix in sources)
    kind = keys.take_any(*names, gguf_key="dflash.rope.scaling.type", required=False)

    def number(*wanted: str, key: str, required: bool = False) -> float | None:
        found = tuple(prefix + name for name in wanted for prefix in sources)
        return keys.take_number(*found, gguf_key=f"dflash.rope.scaling.{key}", required=required)

    if kind in (None, "default", "mrope"):
        return ()
    if kind not in ("linear", "yarn"):
        raise keys.error(
            f"rope type {kind!r} is not supported in drafter files (default, linear and yarn are)"
        )
    prefix = "dflash.rope.scaling."
    entries = [scalar(prefix + "type", GGUFValueType.STRING, kind)]
    factor = number("factor", key="factor", required=True)
    assert factor is not None
    entries.append(scalar(prefix + "factor", GGUFValueType.FLOAT32, factor))
    if kind == "linear":
        return tuple(entries)
    name = "original_max_position_embeddings"
    length = keys.need_count(
        *(p + name for p in sources), body + name, gguf_key=prefix + "original_context_length"
    )
    entries.append(scalar(prefix + "original_context_length", GGUFValueType.UINT32, length))
    for wanted, key in _OPTIONAL_YARN:
        value = number(*wanted, key=key)
        if value is not None:
            entries.append(scalar(prefix + key, GGUFValueType.FLOAT32, value))
    return tuple(entries)
