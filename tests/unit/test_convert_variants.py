"""What checkpoints of other model families bring: biases, sinks, 8-bit floats with scales, and
configuration keys of all kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import TARGET, Array, Drafter  # noqa: E402

from convert import ConversionError, ConversionReport, convert, describe  # noqa: E402
from convert.dtypes import to_float32  # noqa: E402

RANDOM = np.random.default_rng(5)
UP = "layers.0.mlp.up_proj.weight"  # [96, 64]
LENGTHS = {"q": 64, "k": 32, "v": 32, "o": 64}
GGUF = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}


def run(
    drafter: Drafter, folder: Path, **options: Any
) -> tuple[ConversionReport, dict[str, Array]]:
    """Convert to F32, and read the tensors back by an independent reader."""
    out = folder / "out.gguf"
    report = convert(drafter.save(folder / "in"), TARGET, out, outtype="f32", **options)
    return report, {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(out).tensors}


def add_biases(drafter: Drafter, kinds: str = "qkvo") -> None:
    for layer in range(2):
        for kind in kinds:
            name = f"layers.{layer}.self_attn.{kind}_proj.bias"
            drafter.tensors[name] = RANDOM.standard_normal(LENGTHS[kind], np.float32)


@pytest.mark.parametrize("stated", ["attention_bias", "qkv_bias", ""])
@pytest.mark.parametrize("kinds", ["qkvo", "qkv"])
def test_biases(stated: str, kinds: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config.pop("attention_bias", None)
    if stated:
        drafter.config[stated] = True
    add_biases(drafter, kinds)
    _, written = run(drafter, tmp_path)
    for layer in range(2):
        for kind in kinds:
            expected = drafter.tensors[f"layers.{layer}.self_attn.{kind}_proj.bias"]
            np.testing.assert_array_equal(written[f"blk.{layer}.{GGUF[kind]}.bias"], expected)
    assert ("blk.0.attn_output.bias" in written) == ("o" in kinds)


def test_biases_of_a_speculators_export(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["attention_bias"] = True
    add_biases(drafter)
    _, written = run(drafter.to_speculators(), tmp_path)
    assert "blk.1.attn_output.bias" in written


def test_one_bias_missing(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["attention_bias"] = True
    add_biases(drafter)
    del drafter.tensors["layers.1.self_attn.o_proj.bias"]
    with pytest.raises(ConversionError, match=r"layers\.1\.self_attn\.o_proj\.bias' missing"):
        run(drafter, tmp_path)


def test_biases_follow_their_rows(tmp_path: Path) -> None:
    """Interleaved pairs become NeoX's in biases as in weights."""
    drafter = Drafter.load("tiny-plain")
    drafter.config |= {"attention_bias": True, "rope_is_neox_style": False}
    add_biases(drafter)
    name = "layers.0.self_attn.k_proj"
    drafter.tensors[f"{name}.weight"] = np.repeat(drafter.tensors[f"{name}.bias"][:, None], 64, 1)
    _, written = run(drafter, tmp_path)
    np.testing.assert_array_equal(
        written["blk.0.attn_k.bias"], written["blk.0.attn_k.weight"][:, 0]
    )
    assert not np.array_equal(written["blk.0.attn_k.bias"], drafter.tensors[f"{name}.bias"])


@pytest.mark.parametrize(
    "name",
    [
        "layers.{}.self_attn.sinks",
        "layers.{}.self_attn.attention_sink_bias",
        "model.layers.{}.self_attn.attention_sink_bias",
        "model.layers.{}.attention_sink_bias",
        "layers.{}.sinks",
        "layers.{}.self_attn.sink.weight",
    ],
)
def test_names_of_sinks(name: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    for layer in range(2):
        drafter.tensors[name.format(layer)] = np.arange(4, dtype=np.float32) + layer
    _, written = run(drafter, tmp_path)
    assert written["blk.1.attn_sinks.weight"].tolist() == [1, 2, 3, 4]


def test_a_sink_under_both_names(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    for name in ("sinks", "attention_sink_bias"):
        drafter.tensors[f"layers.0.self_attn.{name}"] = np.zeros(4, np.float32)
    with pytest.raises(ConversionError, match="are the same"):
        run(drafter, tmp_path)


# -- 8-bit floats ----------------------------------------------------------------------------------


def decode(code: int, n_mantissa: int) -> float:
    """A positive code as a number, from the definition of such formats."""
    exponent, mantissa = divmod(code, 1 << n_mantissa)
    bias = (1 << (6 - n_mantissa)) - 1
    fraction = mantissa / (1 << n_mantissa)
    return float(
        fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
    )


@pytest.mark.parametrize(
    ("dtype", "n_mantissa", "largest", "n_finite"),
    [("F8_E4M3", 3, 448.0, 127), ("F8_E5M2", 2, 57344.0, 124)],
)
def test_tables(dtype: str, n_mantissa: int, largest: float, n_finite: int) -> None:
    table = to_float32(np.arange(256, dtype=np.uint8), dtype)
    assert table[:n_finite].tolist() == [decode(code, n_mantissa) for code in range(n_finite)]
    assert table[n_finite - 1] == largest
    assert not np.isfinite(table[n_finite:128]).any()
    np.testing.assert_array_equal(table[128:], -table[:128])
    assert np.signbit(table[128:][:n_finite]).all()


def test_a_table_of_powers() -> None:
    assert to_float32(np.array([0, 127, 130, 254], np.uint8), "F8_E8M0").tolist() == [
        2.0**-127,
        1,
        8,
        2.0**127,
    ]


def quantise(
    drafter: Drafter, scale: Array, *, dtype: str = "F8_E4M3", suffix: str = "_scale"
) -> Array:
    """Give `UP` any 8-bit codes; returns them decoded, without scale."""
    codes = RANDOM.integers(0, 120, (96, 64)).astype(np.uint8)
    drafter.tensors[UP], drafter.dtypes[UP] = codes, dtype
    drafter.tensors[UP + suffix] = scale
    return to_float32(codes, dtype)


SCALES: dict[str, tuple[tuple[int, ...], Any]] = {
    "scalar": ((), lambda s: s),
    "tensor": ((1,), lambda s: s[0]),
    "channel": ((96, 1), lambda s: s),
    "channel, flat": ((96,), lambda s: s[:, None]),
    "one block": ((1, 1), lambda s: s),
    "blocks": ((3, 2), lambda s: np.kron(s, np.ones((32, 32), np.float32))),
    "blocks cut off": ((3, 3), lambda s: np.kron(s, np.ones((40, 24), np.float32))[:96, :64]),
}


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
@pytest.mark.parametrize("case", SCALES)
def test_scales(case: str, suffix: str, dtype: str, tmp_path: Path) -> None:
    shape, spread = SCALES[case]
    block = {"blocks": [32, 32], "blocks cut off": [40, 24]}.get(case)
    drafter = Drafter.load("tiny-plain")
    scale = RANDOM.uniform(0.001, 0.01, shape).astype(np.float32)
    values = quantise(drafter, scale, dtype=dtype, suffix=suffix)
    drafter.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": block}
    drafter.tensors[UP.replace("weight", "input_scale")] = np.ones((), np.float32)
    report, written = run(drafter, tmp_path)
    np.testing.assert_array_equal(written["blk.0.ffn_up.weight"], values * spread(scale))
    ignored = {tensor.hf_name: tensor.reason for tensor in report.ignored_tensors}
    assert ignored[UP + suffix] == f"multiplied into {UP}"
    assert describe(tmp_path / "in").types[dtype] == 1


def test_scales_follow_their_rows(tmp_path: Path) -> None:
    """Where rows change places, as those of interleaved pairs do, the same comes out as of the
    weights unpacked beforehand."""
    name = "layers.1.self_attn.q_proj.weight"
    codes = RANDOM.integers(0, 120, (64, 64)).astype(np.uint8)
    scale = RANDOM.uniform(0.001, 0.01, (4, 4)).astype(np.float32)
    packed, plain = Drafter.load("tiny-plain"), Drafter.load("tiny-plain")
    for drafter in (packed, plain):
        drafter.config["rope_is_neox_style"] = False
        drafter.config["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": [16, 16],
        }
    packed.tensors |= {name: codes, f"{name}_scale_inv": scale}
    packed.dtypes[name] = "F8_E4M3"
    plain.tensors[name] = to_float32(codes, "F8_E4M3") * np.kron(scale, np.ones((16, 16)))
    plain.tensors[name] = plain.tensors[name].astype(np.float32)
    for folder in ("packed", "plain"):
        (tmp_path / folder).mkdir()
    _, one = run(packed, tmp_path / "packed")
    _, other = run(plain, tmp_path / "plain")
    np.testing.assert_allclose(one["blk.1.attn_q.weight"], other["blk.1.attn_q.weight"], rtol=1e-6)


def test_blocks_of_128_by_default(tmp_path: Path) -> None:
    """The embeddings are 160 x 64: two blocks, the second cut off."""
    drafter = Drafter.load("tiny-plain")
    name = "embed_tokens.weight"
    codes = RANDOM.integers(0, 120, (160, 64)).astype(np.uint8)
    drafter.tensors |= {name: codes, f"{name}_scale_inv": np.array([[2], [3]], np.float32)}
    drafter.dtypes[name] = "F8_E4M3"
    _, written = run(drafter, tmp_path)
    expected = to_float32(codes, "F8_E4M3") * np.where(np.arange(160) < 128, 2, 3)[:, None]
    np.testing.assert_array_equal(written["token_embd.weight"], expected)
    reduced, head = run(drafter, tmp_path, draft_vocab=40)
    assert reduced.head is not None
    np.testing.assert_array_equal(head["output.weight"], expected[reduced.head.vocabulary.ids])


BAD_SCALES: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, r"up_proj\.weight' is F8_E4M3 and has 0 tensors of scales"),
    "two": (
        {UP + "_scale": np.ones(1, np.float32), UP + "_scale_inv": np.ones(1, np.float32)},
        "has 2 tensors of scales",
    ),
    "shape": (
        {UP + "_scale": np.ones((3, 2), np.float32)},
        r"shape \[3, 2\] gives .* nor one per block of 128 x 128",
    ),
    "integers": ({UP + "_scale": np.ones(1, np.int32)}, "weight_scale' is I32"),
    "NaN": ({UP + "_scale": np.full(1, np.nan, np.float32)}, "up_proj.weight' holds NaN"),
}


@pytest.mark.parametrize("case", BAD_SCALES)
def test_bad_scales(case: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    tensors, message = BAD_SCALES[case]
    quantise(drafter, np.ones(1, np.float32))
    del drafter.tensors[UP + "_scale"]
    drafter.tensors |= tensors
    with pytest.raises(ConversionError, match=message):
        run(drafter, tmp_path)


def test_a_scale_that_belongs_to_nothing(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.tensors[UP + "_scale"] = np.ones(1, np.float32)
    with pytest.raises(ConversionError, match=r"unknown tensor .*up_proj\.weight_scale"):
        run(drafter, tmp_path)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "U16", "SOMETHING_NEW"])
def test_types_of_tensors_that_are_not_used(dtype: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    kind = np.uint16 if dtype == "U16" else np.uint8
    drafter.tensors["verifier_lm_head.weight"] = np.zeros(4, kind)
    drafter.dtypes["verifier_lm_head.weight"] = dtype
    report, _ = run(drafter, tmp_path)
    assert report.ignored_tensors[0].reason == "training only"


def test_types_of_tensors_that_are_used(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.tensors[UP], drafter.dtypes[UP] = np.zeros((96, 64), np.uint8), "SOMETHING_NEW"
    with pytest.raises(ConversionError, match=rf"'{UP}' is SOMETHING_NEW, expected floating"):
        run(drafter, tmp_path)


# -- Configuration keys ----------------------------------------------------------------------------

HARMLESS: dict[str, Any] = {
    "_attn_implementation": "flash_attention_2",
    "_attn_implementation_autoset": True,
    "pretraining_tp": 4,
    "transformers_version": "5.3.0.dev0",
    "use_cache": False,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "torch_dtype": None,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.9,
    "base_model_tp_plan": {"layers.*.mlp.up_proj": "colwise"},
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "gradient_checkpointing": True,
    "unsloth_fixed": True,
    "attention_sink_bias": True,
    "num_experts_per_tok": 8,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "v_head_dim": 16,
    "swa_num_key_value_heads": 2,
    "projector_type": "dflash2",
    "attention_mode": "gqa",
}
NEUTRAL: dict[str, Any] = {
    "attention_bias": None,
    "mlp_bias": False,
    "clip_qkv": None,
    "attn_logit_softcapping": None,
    "num_local_experts": 0,
    "mlp_only_layers": [],
    "residual_multiplier": 1.0,
    "quantization_config": None,
    "compression_config": {},
    "quantization": None,
}


@pytest.mark.parametrize("key", [*HARMLESS, *NEUTRAL])
@pytest.mark.parametrize("is_export", [False, True])
def test_keys_that_change_nothing(key: str, is_export: bool, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    value = (HARMLESS | NEUTRAL)[key]
    drafter.config[key] = value
    if is_export:  # in the transformer's section
        drafter = drafter.to_speculators()
    report = convert(drafter.save(tmp_path / "in"), TARGET, tmp_path / "out", dry_run=True)
    name = f"transformer_layer_config.{key}" if is_export else key
    assert {use.key: use.gguf_key for use in report.keys}[name] == ""


@pytest.mark.parametrize("key", ["sample_from_anchor", "num_target_layers", "use_qk_norm"])
def test_keys_of_the_drafting_section(key: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    value = drafter.config.pop(key, False)
    drafter.config["dflash_config"][key] = value
    report = convert(drafter.save(tmp_path / "in"), TARGET, tmp_path / "out", dry_run=True)
    assert f"dflash_config.{key}" in {use.key for use in report.keys}


QUANTISATIONS: dict[str, Any] = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "channel"}}},
    },
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "off": {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False},
    "nothing": {},
}


@pytest.mark.parametrize("case", QUANTISATIONS)
def test_quantisation_that_the_tensors_tell(case: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["quantization_config"] = QUANTISATIONS[case]
    run(drafter, tmp_path)
