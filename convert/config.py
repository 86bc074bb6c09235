"""What a drafter's `config.json` says, in one form for all three layouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConversionError
from .harmless import check_supported, ignore_harmless, read_quantisation
from .keys import ConfigKeys, KeyUse
from .rope import Rope, read_rope
from .stored import Block

_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True)
class Convolution:
    """DFlash2's convolution: taps per side, and channels that share coefficients."""

    kernel_size: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Selector:
    """The candidate selector of DFlash2: width of its factors, candidates per position."""

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter's parameters.

    `target_layers` counts layer inputs: HF id k (the output of layer k) is k + 1. `window` is None
    without a sliding window, `window_pattern` then has no effect. `causal_layers` are those in
    which positions of the block see only the ones before them. `vocab_size` is 0 where the
    configuration leaves it to the target. `attention_bias` is None where the tensors are to decide,
    `scale_block` the stated size of the blocks that share a scale.
    """

    layout: str
    n_layers: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_eps: float
    rope: Rope
    block_size: int
    mask_token_id: int
    target_layers: tuple[int, ...]
    n_target_layers: int | None
    convolution: Convolution | None
    selector: Selector | None
    logit_scale: float | None
    softcap: float | None
    embedding_scale: float | None
    value_scale: float | None
    activation: str
    window: int | None
    window_pattern: tuple[bool, ...]
    causal_layers: tuple[bool, ...]
    attention_bias: bool | None
    scale_block: Block | None
    own_embeddings: bool
    own_head: bool
    key_uses: tuple[KeyUse, ...]
    decisions: tuple[str, ...]

    @property
    def version(self) -> int:
        """2 for DFlash2 (convolution and selector), 1 for DFlash."""
        return 1 if self.selector is None else 2

    @property
    def causal(self) -> bool:
        """Whether all layers are."""
        return all(self.causal_layers)


@dataclass(frozen=True, slots=True)
class Layout:
    """One of the checkpoint layouts in circulation, and where it keeps things.

    `body` is the dotted prefix of the transformer's keys, `draft` the prefixes searched for the
    drafting keys, in order. `is_assistant`: a model class of its own, whose configurations leave
    the vocabulary to the target, and to the class what is the same for all: the block is not
    causal, the activation is SiLU.
    """

    title: str
    version: int
    body: str
    draft: tuple[str, ...]
    sections: tuple[str, ...]
    is_assistant: bool = False

    def draft_names(self, name: str) -> tuple[str, ...]:
        """Where a drafting key may stand, in the order to look for it."""
        return tuple(prefix + name for prefix in self.draft)


_ROPE_SECTIONS = ("rope_parameters", "rope_scaling", "full_attention", "sliding_attention")


def _published(title: str, version: int) -> Layout:
    return Layout(title, version, "", ("dflash_config.", ""), ("dflash_config", *_ROPE_SECTIONS))


def _speculators(title: str, version: int) -> Layout:
    body = "transformer_layer_config"
    return Layout(title, version, f"{body}.", ("",), (body, *_ROPE_SECTIONS))


BY_ARCHITECTURE: dict[str, Layout] = {
    "DFlash2DraftModel": _published("published DFlash2", 2),
    "DFlashDraftModel": _published("DFlash v1", 1),
    "MuseGlimmerAssistantModel": Layout(
        "Muse Glimmer's assistant (DFlash v1)", 1, "", ("",), _ROPE_SECTIONS, is_assistant=True
    ),
}
BY_SPECULATORS_TYPE: dict[str, Layout] = {
    "dflash2": _speculators("speculators export of DFlash2", 2),
    "dflash": _speculators("speculators export of DFlash v1", 1),
}


def find_layout(raw: dict[str, Any], path: Path) -> Layout:
    """The layout of a `config.json`.

    Raises `ConversionError` for anything that is not a DFlash drafter.
    """
    kind = raw.get("speculators_model_type")
    architectures = raw.get("architectures")
    if kind is not None:
        if isinstance(kind, str) and kind in BY_SPECULATORS_TYPE:
            return BY_SPECULATORS_TYPE[kind]
        known, got = BY_SPECULATORS_TYPE, f"speculators_model_type {kind!r}"
    else:
        name = architectures[0] if isinstance(architectures, list) and architectures else None
        if isinstance(name, str) and name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
        known, got = BY_ARCHITECTURE, f"architecture {name!r}"
    hint = " DSpark drafters are not supported." if "dspark" in got.lower() else ""
    raise ConversionError(
        f"{path}: {got} is not a drafter this converter knows ({', '.join(known)}).{hint} "
        "Pass the drafter's folder first and the target with --target."
    )


def read_config(
    raw: dict[str, Any], path: Path, *, ignore_keys: Iterable[str] = ()
) -> DrafterConfig:
    """Interpret a drafter's configuration.

    `raw` is the parsed JSON of `path`; `ignore_keys` are dotted names of unknown keys to let pass.
    Raises `ConversionError` for a missing, malformed, unsupported or unknown key.
    """
    layout = find_layout(raw, path)
    keys = ConfigKeys(raw, layout.sections, path)
    body = layout.body
    decisions: list[str] = []
    # The order of reading decides which of several mistakes is reported.
    check_supported(keys, body)
    n_layers = _layer_count(keys, body)
    head_dim = _size(keys, body, "head_dim", "attention.key_length")
    target_layers = _target_layers(keys, layout)
    convolution, selector = _dflash2(keys, layout)
    window, pattern = _window(keys, layout, n_layers, decisions)
    softcap = _scale(keys, layout, "final_logit_softcapping", "final_logit_softcapping")
    activation = _activation(keys, layout, decisions)
    vocab_size = _vocab_size(keys, layout, decisions)
    own = keys.take_bool("has_embed_tokens", note="decides whether embed_tokens is kept")
    config = DrafterConfig(
        layout=layout.title,
        n_layers=n_layers,
        n_ctx=_size(keys, body, "max_position_embeddings", "context_length"),
        n_embd=_hidden_size(keys, body),
        n_ff=_size(keys, body, "intermediate_size", "feed_forward_length"),
        n_head=_size(keys, body, "num_attention_heads", "attention.head_count"),
        n_head_kv=_size(keys, body, "num_key_value_heads", "attention.head_count_kv"),
        head_dim=head_dim,
        vocab_size=vocab_size,
        draft_vocab_size=_optional_count(keys, "draft_vocab_size", "rows of the head")
        or vocab_size,
        rms_eps=_rms_eps(keys, body),
        rope=read_rope(keys, body, head_dim),
        block_size=_drafting(keys, layout, "block_size", "dflash.block_size", 2),
        mask_token_id=_drafting(keys, layout, "mask_token_id", "tokenizer.ggml.mask_token_id", 0),
        target_layers=target_layers,
        n_target_layers=_target_layer_count(keys, layout),
        convolution=convolution,
        selector=selector,
        logit_scale=_scale(keys, layout, "output_multiplier", "logit_scale"),
        softcap=softcap if softcap is not None and softcap > 0 else None,
        embedding_scale=_scale(keys, layout, "input_embedding_scale", "embedding_scale"),
        value_scale=_scale(keys, layout, "attention_value_scale", "attention.value_scale"),
        activation=activation,
        window=window,
        window_pattern=pattern,
        causal_layers=_causal(keys, layout, n_layers, decisions),
        attention_bias=keys.take_bool(*_bias_names(layout), note="biases of q, k, v and o"),
        scale_block=read_quantisation(keys, body),
        own_embeddings=not body if own is None else own,
        own_head=not body,
        key_uses=_account(keys, body, ignore_keys),
        decisions=tuple(decisions),
    )
    _check_sizes(config, keys)
    return config


def _target_layer_count(keys: ConfigKeys, layout: Layout) -> int | None:
    names = layout.draft_names("num_target_layers")
    return keys.take_count(*names, note="checked", required=False)


def _bias_names(layout: Layout) -> tuple[str, ...]:
    prefixes = dict.fromkeys((layout.body, *layout.draft))
    return tuple(prefix + name for name in ("attention_bias", "qkv_bias") for prefix in prefixes)


def _size(keys: ConfigKeys, body: str, name: str, gguf_key: str) -> int:
    return keys.need_count(body + name, gguf_key=f"dflash.{gguf_key}")


def _optional_count(keys: ConfigKeys, name: str, note: str) -> int | None:
    return keys.take_count(name, note=note, required=False)


def _drafting(keys: ConfigKeys, layout: Layout, name: str, gguf_key: str, minimum: int) -> int:
    return keys.need_count(*layout.draft_names(name), gguf_key=gguf_key, minimum=minimum)


def _scale(keys: ConfigKeys, layout: Layout, name: str, gguf_key: str) -> float | None:
    names = layout.draft_names(name)
    return keys.take_number(*names, gguf_key=f"dflash.{gguf_key}", required=False)


def _rms_eps(keys: ConfigKeys, body: str) -> float:
    gguf_key = "dflash.attention.layer_norm_rms_epsilon"
    return keys.need_number(f"{body}rms_norm_eps", gguf_key=gguf_key)


def _layer_count(keys: ConfigKeys, body: str) -> int:
    n_layers = _size(keys, body, "num_hidden_layers", "block_count")
    if n_layers > 1024:
        raise keys.error(f"num_hidden_layers is {n_layers}: no drafter is that deep")
    return n_layers


def _vocab_size(keys: ConfigKeys, layout: Layout, decisions: list[str]) -> int:
    name, note = f"{layout.body}vocab_size", "checked against the target"
    if not layout.is_assistant:
        return keys.need_count(name, note=note)
    stated = keys.take_count(name, note=note, required=False)
    if stated is None:
        decisions.append("vocabulary of the target: such configurations do not state it")
    return stated or 0


def _activation(keys: ConfigKeys, layout: Layout, decisions: list[str]) -> str:
    name, gguf_key = f"{layout.body}hidden_act", "dflash.hidden_activation"
    activation = keys.take_any(name, gguf_key=gguf_key, required=not layout.is_assistant)
    if activation is None:
        decisions.append("activation silu: not stated, as such drafters have it")
        activation = "silu"
    if activation not in _ACTIVATIONS:
        raise keys.error(f"hidden_act {activation!r} is not one of {', '.join(_ACTIVATIONS)}")
    return str(activation)


def _hidden_size(keys: ConfigKeys, body: str) -> int:
    of_target = _optional_count(keys, "target_hidden_size", "checked")
    n_embd = _size(keys, body, "hidden_size", "embedding_length")
    if of_target not in (None, n_embd):
        raise keys.error(
            f"target_hidden_size {of_target} differs from the drafter's hidden_size {n_embd}, "
            "but drafter and target share embeddings and head: such drafters are not supported"
        )
    return n_embd


def _account(keys: ConfigKeys, body: str, ignore_keys: Iterable[str]) -> tuple[KeyUse, ...]:
    ignore_harmless(keys, body)
    return keys.finish(ignore_keys)


def _target_layers(keys: ConfigKeys, layout: Layout) -> tuple[int, ...]:
    if layout.body:
        taken = keys.take_list(
            "aux_hidden_state_layer_ids", item=int, gguf_key="dflash.target_layers"
        )
        step = 0  # this layout counts inputs already
    else:
        names = layout.draft_names("target_layer_ids")
        taken = keys.take_list(*names, item=int, gguf_key="dflash.target_layers", note="each + 1")
        step = 1
    layers = tuple(int(k) + step for k in taken or ())
    if not layers:
        raise keys.error("no target layers are named: the drafter would have nothing to read")
    if list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] < 2**31:
        raise keys.error(
            f"target layers {taken} must be distinct, ascending and count from {1 - step}"
        )
    return layers


def _dflash2(keys: ConfigKeys, layout: Layout) -> tuple[Convolution | None, Selector | None]:
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    if layout.version == 1:
        present = [key for name in names for key in layout.draft_names(name) if key in keys.names()]
        if present:
            raise keys.error(
                f"the file says DFlash v1 but has the DFlash2 key {present[0]!r}: set "
                "architectures to DFlash2DraftModel if the drafter is a DFlash2 one"
            )
        return None, None
    kernel, group, rank, top_k = (
        keys.need_count(*layout.draft_names(name), gguf_key=f"dflash.{name}") for name in names
    )
    return Convolution(kernel, group), Selector(rank, top_k)


def _layer_types(keys: ConfigKeys, body: str, n_layers: int) -> tuple[bool, ...]:
    """Which layers are declared sliding; all False when the file does not say."""
    types = keys.take_list(
        f"{body}layer_types",
        item=str,
        gguf_key="dflash.attention.sliding_window_pattern",
        required=False,
    )
    if types is None:
        return (False,) * n_layers
    if len(types) != n_layers:
        raise keys.error(f"layer_types has {len(types)} entries for {n_layers} layers")
    for name in types:
        if name not in ("full_attention", "sliding_attention"):
            raise keys.error(f"layer type {name!r} is neither full_attention nor sliding_attention")
    return tuple(name == "sliding_attention" for name in types)


def _window(
    keys: ConfigKeys, layout: Layout, n_layers: int, decisions: list[str]
) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and the layers it applies to."""
    body = layout.body
    use_swa = keys.take_bool("dflash_config.use_swa", note="every layer slides if true") or False
    declared = _layer_types(keys, body, n_layers)
    names = ("dflash_config.swa_window_size", f"{body}sliding_window", "sliding_window")
    size = keys.take_count(
        *dict.fromkeys(names),
        gguf_key="dflash.attention.sliding_window",
        required=False,
        minimum=0,
    )
    enabled = keys.take_bool(f"{body}use_sliding_window", note="switches the window")
    if use_swa:
        declared, enabled = (True,) * n_layers, True
    if enabled and size and not any(declared) and f"{body}layer_types" not in keys.names():
        raise keys.error(
            "use_sliding_window is true but layer_types is missing: add it, one of "
            "full_attention or sliding_attention per layer"
        )
    if enabled is False:
        if any(declared):
            decisions.append("no sliding window: use_sliding_window is false")
        return None, declared
    if not any(declared):
        # Upstream writes the size even so, with a pattern that uses it nowhere.
        return (size or None) if enabled else None, declared
    if not size:
        raise keys.error(
            "layers are declared sliding_attention but sliding_window is missing. Without it the "
            "drafter accepts nothing past the window: add its size to config.json."
        )
    if enabled is None:
        decisions.append("sliding window used: layer_types asks for it, use_sliding_window absent")
    decisions.append(f"sliding window of {size} on {sum(declared)} of {n_layers} layers")
    return size, declared


def _causal(
    keys: ConfigKeys, layout: Layout, n_layers: int, decisions: list[str]
) -> tuple[bool, ...]:
    """In which layers positions of the block see only those before them."""
    gguf_key = "dflash.attention.causal"
    stated = keys.take_bool(f"{layout.body}is_causal", "dflash_config.causal", gguf_key=gguf_key)
    # use_swa alone gives every layer a window and makes none causal
    kinds = _layer_types(keys, layout.body, n_layers)
    if layout.body:
        open_window = keys.take_bool("sliding_window_non_causal", gguf_key=gguf_key)
        if stated is None and any(kinds) and open_window is None:
            raise keys.error(
                "sliding_window_non_causal is missing: whether the block is causal cannot be "
                "told. Add "
                "it (true: positions of the block see each other) as the drafter was trained."
            )
        kinds = tuple(sliding and not open_window for sliding in kinds)
    if stated is not None:
        decisions.append(f"causal {str(stated).lower()}: stated in the configuration")
        return (stated,) * n_layers
    if layout.is_assistant:
        decisions.append("causal false: not stated, as such drafters have it")
        return (False,) * n_layers
    if len(set(kinds)) > 1:
        decisions.append(
            f"causal in the {sum(kinds)} sliding layers alone: not stated, so by convention. "
            "llama.cpp, where all layers are alike, takes none for causal"
        )
        return kinds
    reason = "sliding layers are" if kinds[0] else "the layers are not"
    decisions.append(f"causal {str(kinds[0]).lower()}: not stated, {reason} causal by convention")
    return kinds


def _check_sizes(config: DrafterConfig, keys: ConfigKeys) -> None:
    if config.n_head % config.n_head_kv != 0:
        raise keys.error(
            f"{config.n_head} attention heads are not a multiple of {config.n_head_kv} key-value "
            "heads"
        )
    if config.head_dim % 2 != 0:
        raise keys.error(f"head_dim {config.head_dim} is odd: rotary embeddings need pairs")
    if config.mask_token_id >= config.vocab_size > 0:
        raise keys.error(
            f"mask_token_id {config.mask_token_id} is outside the vocabulary of {config.vocab_size}"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise keys.error(
            f"draft_vocab_size {config.draft_vocab_size} exceeds vocab_size {config.vocab_size}"
        )
    if config.rms_eps <= 0:
        raise keys.error(f"rms_norm_eps is {config.rms_eps}, expected a positive number")
    if config.convolution and config.n_embd % config.convolution.group_size != 0:
        raise keys.error(
            f"conv_group_size {config.convolution.group_size} does not divide hidden_size "
            f"{config.n_embd}"
        )
    if config.selector:
        top_k = config.selector.top_k
        if config.n_embd < top_k * (top_k + 1):
            raise keys.error(
                f"selector_top_k {top_k} needs a hidden size of at least {top_k * (top_k + 1)} in "
                f"llama.cpp, this drafter has {config.n_embd}"
            )
        if config.draft_vocab_size != config.vocab_size:
            raise keys.error("a DFlash2 drafter with a reduced vocabulary is not supported")
        if top_k > config.vocab_size:
            raise keys.error(f"selector_top_k {top_k} exceeds the vocabulary")
