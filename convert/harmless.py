"""Configuration keys by what they can change.

Configurations carry what Hugging Face's classes happened to hold when they were saved. A key that
cannot change what a drafter computes is accepted whatever its value; one that could is accepted at
the value that changes nothing, and otherwise refused by name.
"""

from __future__ import annotations

from typing import Any

from .keys import ConfigKeys
from .stored import Block, stated_block

# How a program runs, trains, samples or labels a model.
_NO_EFFECT = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _experts_implementation_internal _from_model_config
    _flash_attn_2_enabled _name_or_path add_cross_attention architectures attention_dropout
    attention_probs_dropout_prob attn_implementation attn_pdrop auto_map bad_words_ids
    base_model_ep_plan base_model_pp_plan base_model_tp_plan begin_suppress_tokens bos_token_id
    cache_implementation chunk_size_feed_forward classifier_dropout cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample dropout dtype early_stopping embd_pdrop
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id generation_config gradient_checkpointing hidden_dropout
    hidden_dropout_prob id2label initializer_factor initializer_range is_decoder is_encoder_decoder
    keys_to_ignore_at_inference label2id length_penalty loss_decay_gamma max_length max_new_tokens
    max_window_layers min_length model_max_length model_type no_repeat_ngram_size num_anchors
    num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
    output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads
    remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate
    router_aux_loss_coef sep_token_id suppress_tokens task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p torch_dtype
    torchscript tp_plan transformers.js_config transformers_version typical_p unk_token_id
    unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attn use_flash_attention
"""
# Sinks, norms, experts and compressed attention are made of tensors: those that are there are used,
# and one that has no place in a drafter is refused.
_TENSORS_DECIDE = """
    add_full_attention_sink_bias add_swa_attention_sink_bias attention_sink attention_sink_bias
    decoder_sparse_step first_k_dense_replace kv_lora_rank mlp_only_layers
    moe_experts_implementation moe_intermediate_size moe_layer_freq n_group n_routed_experts
    n_shared_experts norm_topk_prob num_experts num_experts_per_tok num_local_experts q_lora_rank
    qk_head_dim qk_nope_head_dim qk_norm qk_rope_head_dim routed_scaling_factor scoring_func
    shared_expert_intermediate_size topk_group topk_method use_qk_norm use_sink
"""

_BIASES = "biases other than the attention's are not part of the drafter graph"
_VARIANT = "this variant of the drafter is not supported"
_SCALES = "this scale is not part of the drafter graph"
_MUST_BE: dict[str, tuple[tuple[Any, ...], str]] = {
    "mlp_bias": ((False,), _BIASES),
    "use_bias": ((False,), _BIASES),
    "add_bias_linear": ((False,), _BIASES),
    "lm_head_bias": ((False,), _BIASES),
    "quantization": ((), "the checkpoint is quantised; convert the original weights"),
    "sample_from_anchor": ((False,), "drafters that predict at the anchor are not supported"),
    "draft_ffn_type": (("dense",), "expert feed-forward drafters are not supported"),
    "projector_type": (("dflash", "dflash2"), _VARIANT),
    "attention_mode": (("gqa", "mha"), "compressed attention is not supported"),
    "clip_qkv": ((), "clipping is not part of the drafter graph"),
    "attn_logit_softcapping": ((0,), "soft-capped attention is not supported"),
    "attn_output_gate": ((False,), "a gate of the attention's output is not supported"),
    "attention_k_eq_v": ((False,), "K/V sharing is not supported"),
    "num_kv_shared_layers": ((0,), "K/V sharing is not supported"),
    "attention_chunk_size": ((0,), "attention in chunks is not supported"),
    "no_rope_layers": (([],), "layers without rotary embedding are not supported"),
    "no_rope_layer_interval": ((0,), "layers without rotary embedding are not supported"),
    "use_parallel_residual": ((False,), _VARIANT),
    "parallel_attn": ((False,), _VARIANT),
    "embedding_multiplier": ((1,), _SCALES),
    "residual_multiplier": ((1,), _SCALES),
    "logits_scaling": ((1,), _SCALES),
    "dflash_context_residual": ((False,), _VARIANT),
    "dflash_block_position_embedding": ((False,), _VARIANT),
    "dflash_gated_layer_fusion": ((False,), _VARIANT),
    "dflash2_dynamic_conv": ((False,), _VARIANT),
    "dflash2_candidate_selector": ((False,), _VARIANT),
    "markov_head_type": ((), "DSpark drafters are not supported"),
}
_SPECULATORS_NOTES = {
    "speculators_config": "proposal settings of the serving engine",
    "speculators_version": "provenance",
    "has_no_defaults_at_init": "export detail",
    "max_anchors": "training only",
    "embed_requires_grad": "training only",
}

# Of attention whose sliding layers or values have sizes of their own.
_MUST_EQUAL = {
    "v_head_dim": "head_dim",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "head_dim",
    "swa_num_attention_heads": "num_attention_heads",
    "swa_num_key_value_heads": "num_key_value_heads",
}

# Methods whose weights are floating point, with scales beside them: the tensors tell the rest.
_FLOAT_METHODS = frozenset(
    {"fp8", "fbgemm_fp8", "modelopt", "compressed-tensors", "finegrained_fp8"}
)


def _places(body: str) -> tuple[str, ...]:
    """Dotted prefixes under which a key may stand. `body` is that of the transformer's keys."""
    return tuple(dict.fromkeys((body, "", "dflash_config.")))


def check_supported(keys: ConfigKeys, body: str) -> None:
    """Raises `ConversionError` for a key that asks for what drafters here cannot do."""
    for prefix in _places(body):
        for key, (allowed, why) in _MUST_BE.items():
            keys.require(prefix + key, allowed, why)
        for key, other in _MUST_EQUAL.items():
            why = f"only drafters whose {other} it equals are supported"
            keys.require(prefix + key, (keys.peek(body + other),), why)


def ignore_harmless(keys: ConfigKeys, body: str) -> None:
    """Account for keys without effect."""
    for name in ("architectures", "speculators_model_type"):
        keys.ignore(name, "names the layout")
    for prefix in _places(body):
        for name in _NO_EFFECT.split():
            keys.ignore(prefix + name, "not used at inference")
        for name in _TENSORS_DECIDE.split():
            keys.ignore(prefix + name, "the tensors decide")
    if body:
        for name, reason in _SPECULATORS_NOTES.items():
            keys.ignore(name, reason)


def read_quantisation(keys: ConfigKeys, body: str) -> Block | None:
    """The size of the blocks that share a scale, where the configuration gives one.

    Raises `ConversionError` for a quantised checkpoint other than one of 8-bit floats.
    """
    block = None
    for name in ("quantization_config", "compression_config"):
        for key in dict.fromkeys((name, body + name)):
            value = keys.take_any(key, note="the tensors decide", required=False)
            if value is None or _is_unquantised(value):
                continue
            method = value.get("quant_method") if isinstance(value, dict) else value
            if not isinstance(method, str) or method not in _FLOAT_METHODS:
                raise keys.error(
                    f"{key} says {method!r}: the checkpoint is quantised; convert the original "
                    "weights. Of quantised ones, those of 8-bit floats can be converted."
                )
            block = block or stated_block(value)
    return block


def _is_unquantised(value: object) -> bool:
    """Whether a `quantization_config` asks for nothing."""
    if not isinstance(value, dict):
        return False
    if value.get("quant_method") not in (None, "none", "bitsandbytes"):
        return False
    return not any(on for key, on in value.items() if key.startswith(("load_in_", "_load_in_")))
