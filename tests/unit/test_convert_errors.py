"""What must not convert: each case gives a ConversionError that names it, and no file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import FIXTURES, TARGET, Drafter  # noqa: E402

from convert import ConversionError, convert  # noqa: E402

Change = Callable[[Drafter], None]


def config(name: str = "tiny-plain", /, drop: str = "", **changes: Any) -> tuple[str, Change]:
    """A change of top-level keys."""

    def change(drafter: Drafter) -> None:
        drafter.config.update(changes)
        drafter.config.pop(drop, None)

    return name, change


def draft(name: str = "tiny-plain", /, drop: str = "", **changes: Any) -> tuple[str, Change]:
    """A change of keys in `dflash_config`."""

    def change(drafter: Drafter) -> None:
        drafter.config["dflash_config"].update(changes)
        drafter.config["dflash_config"].pop(drop, None)

    return name, change


def export(**changes: Any) -> tuple[str, Change]:
    """A change of the speculators export's top-level keys; None deletes."""

    def change(drafter: Drafter) -> None:
        other = drafter.to_speculators()
        other.config.update(changes)
        drafter.config = {k: v for k, v in other.config.items() if v is not None}
        drafter.tensors = other.tensors

    return "tiny-window", change


def tensor(tensor_name: str, values: Any, **changes: Any) -> tuple[str, Change]:
    """Replace, add, or with None remove a tensor; and change top-level keys."""

    def change(drafter: Drafter) -> None:
        drafter.config.update(changes)
        if values is None:
            del drafter.tensors[tensor_name]
        elif callable(values):
            drafter.tensors[tensor_name] = values(drafter.tensors[tensor_name].copy())
        else:
            drafter.tensors[tensor_name] = values

    return "tiny-plain", change


def poison(value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values.flat[values.size // 2] = value
        return values

    return change


def no_tensors() -> tuple[str, Change]:
    return "tiny-plain", lambda drafter: drafter.tensors.clear()


FC, Q = "fc.weight", "layers.1.self_attn.q_proj.weight"
ZEROS = np.zeros((3, 3), np.float32)

CASES: dict[str, tuple[tuple[str, Change], str]] = {
    "no tensors": (no_tensors(), "no tensors"),
    "missing tensor": (tensor(Q, None), "q_proj.weight' missing"),
    "unknown tensor": (tensor("layers.0.mystery.weight", ZEROS), "unknown tensor.*mystery"),
    "DSpark tensor": (tensor("markov_head.markov_w1.weight", ZEROS), "DSpark"),
    "wrong shape": (tensor(Q, ZEROS), r"shape \[3, 3\].*asks for \[64, 64\]"),
    "wrong fc": (tensor(FC, np.zeros((64, 96), np.float32)), "fc reads 96 values.*2 target layers"),
    "integer tensor": (tensor(Q, np.zeros((64, 64), np.int32)), "expected floating point"),
    "named twice": (tensor("model.fc.weight", np.zeros((64, 128), np.float32)), "are the same"),
    "NaN": (tensor(Q, poison(float("nan"))), "NaN or infinite"),
    "infinity": (tensor("norm.weight", poison(float("inf"))), "NaN or infinite"),
    "architecture": (config(architectures=["Qwen3ForCausalLM"]), "not a drafter"),
    "architecture missing": (config(drop="architectures"), "not a drafter"),
    "DSpark": (config(architectures=["Qwen3DSparkModel"]), "DSpark"),
    "v1 tensors in v2": (
        config("tiny-v1", architectures=["DFlash2DraftModel"]),
        "conv_kernel_size",
    ),
    "v2 keys in v1": (config(architectures=["DFlashDraftModel"]), "DFlash2 key"),
    "unknown key": (config(new_attention_trick=True), "unknown key 'new_attention_trick'"),
    "unknown draft key": (draft(trick=1), "unknown key 'dflash_config.trick'"),
    "unknown rope key": (
        config(rope_parameters={"rope_theta": 1.0, "rope_type": "default", "odd": 1}),
        "unknown key 'rope_parameters.odd'",
    ),
    "hidden size missing": (config(drop="hidden_size"), "'hidden_size' is missing"),
    "head size missing": (config(drop="head_dim"), "'head_dim' is missing"),
    "epsilon missing": (config(drop="rms_norm_eps"), "'rms_norm_eps' is missing"),
    "base missing": (config(rope_parameters={"rope_type": "default"}), "rope_theta' is missing"),
    "context missing": (config(drop="max_position_embeddings"), "max_position_embeddings"),
    "block size missing": (draft(drop="block_size"), "block_size.*missing"),
    "mask missing": (draft(drop="mask_token_id"), "mask_token_id.*missing"),
    "layers missing": (draft(drop="target_layer_ids"), "target_layer_ids.*missing"),
    "group missing": (draft(drop="conv_group_size"), "conv_group_size.*missing"),
    "not a number": (config(rms_norm_eps="small"), "not a number"),
    "not an integer": (config(num_hidden_layers=2.5), "not an integer"),
    "true is no integer": (config(num_key_value_heads=True), "not an integer"),
    "infinite base": (
        config(rope_parameters={"rope_theta": float("inf"), "rope_type": "default"}),
        "finite",
    ),
    "negative": (config(intermediate_size=-96), "expected 1 to"),
    "too large": (config(max_position_embeddings=2**40), "expected 1 to"),
    "many layers": (config(num_hidden_layers=10**6), "no drafter is that deep"),
    "activation": (config(hidden_act="relu"), "hidden_act 'relu'"),
    "missing biases": (config(attention_bias=True), r"q_proj\.bias.* missing \(6 of"),
    "biases denied": (
        tensor("layers.0.self_attn.q_proj.bias", np.zeros(64, np.float32), attention_bias=False),
        "q_proj.bias' is a bias of the attention, but attention_bias is false",
    ),
    "quantised": (config(quantization_config={"quant_method": "gptq"}), "'gptq'.*quantised"),
    "quantised somehow": (config(quantization_config={"quant_method": [1]}), r"says \[1\]"),
    "quantised in other words": (config(quantization_config="fp4"), "says 'fp4'.*quantised"),
    "quantised on loading": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        "'bitsandbytes'.*quantised",
    ),
    "quantised for another program": (config(quantization={"bits": 4}), "quantization.*quantised"),
    "other biases": (config(mlp_bias=True), "mlp_bias"),
    "another graph": (config(use_parallel_residual=True), "use_parallel_residual"),
    "another projector": (draft(projector_type="domino"), "projector_type is 'domino'"),
    "compressed attention": (draft(attention_mode="mla"), "attention_mode is 'mla'"),
    "other value heads": (config(v_head_dim=8), "v_head_dim is 8.*head_dim.*Only 16"),
    "layers of another target, nested": (draft(num_target_layers=5), "target of 5 layers"),
    "other scales": (config(residual_multiplier=0.5), "residual_multiplier is 0.5.*Only 1"),
    "mask outside": (draft(mask_token_id=160), "outside the vocabulary"),
    "negative mask": (draft(mask_token_id=-1), "expected 0 to"),
    "no target layers": (draft(target_layer_ids=[]), "no target layers"),
    "negative target layer": (draft(target_layer_ids=[-1, 2]), "ascending"),
    "unsorted target layers": (draft(target_layer_ids=[2, 0]), "ascending"),
    "repeated target layers": (draft(target_layer_ids=[2, 2]), "ascending"),
    "target layer outside": (draft(target_layer_ids=[0, 4]), "output of layer 4.*4 layers"),
    "fractional target layer": (draft(target_layer_ids=[0, 1.5]), "list of int"),
    "group does not divide": (draft(conv_group_size=24), "does not divide"),
    "selector too wide": (draft(selector_top_k=8), "at least 72"),
    "heads": (config(num_attention_heads=3), "multiple"),
    "odd head": (config(head_dim=15), "odd"),
    "head sizes": (config(head_dim=32), "shape"),
    "hidden size of another target": (config(hidden_size=128), "hidden_size 128, but .* has 64"),
    "layers of another target": (config(num_target_layers=5), "target of 5 layers"),
    "another vocabulary": (config(vocab_size=192), "vocab_size 192.*160 tokens"),
    "layer types": (config(layer_types=["full_attention"]), "1 entries for 2 layers"),
    "strange layer type": (config(layer_types=["full_attention", "mamba"]), "'mamba'"),
    "window missing": (config("tiny-window", sliding_window=None), "sliding_window is missing"),
    "layer types missing": (
        config("tiny-window", drop="layer_types"),
        "layer_types is missing",
    ),
    "rope type": (
        config(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}),
        "rope type 'llama3'",
    ),
    "scaling without factor": (
        config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
        "factor.*missing",
    ),
    "two ropes": (
        config(
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e6},
            }
        ),
        "differ",
    ),
    "odd rotation": (
        config(
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 2,
            }
        ),
        "rotates 32 of 16",
    ),
    "unknown export": (export(speculators_model_type="eagle3"), "'eagle3' is not a drafter"),
    "DSpark export": (export(speculators_model_type="dspark"), "DSpark"),
    "anchor sampling": (export(sample_from_anchor=True), "sample_from_anchor"),
    "experts": (export(draft_ffn_type="moe"), "expert"),
    "unstated causality": (export(sliding_window_non_causal=None), "cannot be told"),
    "export layer outside": (export(aux_hidden_state_layer_ids=[1, 5]), "output of layer 4"),
    "export layer zero": (export(aux_hidden_state_layer_ids=[0, 3]), "count from 1"),
    "other hidden size": (export(target_hidden_size=128), "target_hidden_size 128"),
    "reduced vocabulary": (export(draft_vocab_size=80), "reduced vocabulary"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_drafters_are_refused(case: str, tmp_path: Path) -> None:
    (name, change), message = CASES[case]
    drafter = Drafter.load(name)
    change(drafter)
    folder = drafter.save(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConversionError, match=f"(?s){message}"):
        convert(folder, TARGET, tmp_path / "out" / "out.gguf")
    assert os.listdir(tmp_path / "out") == []


def test_known_harmless_key_can_be_ignored(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["dflash_config"]["comment"] = "mine"
    folder = drafter.save(tmp_path / "in")
    key = "dflash_config.comment"
    report = convert(folder, TARGET, tmp_path / "out.gguf", ignore_keys=[key])
    assert {use.key: use.note for use in report.keys}[key] == "ignored on request"


def test_values_beyond_half_precision_fail_the_self_test(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.tensors[Q] = poison(1e6)(drafter.tensors[Q].copy())
    folder = drafter.save(tmp_path / "in")
    with pytest.raises(ConversionError, match=r"self-test.*use --outtype bf16"):
        convert(folder, TARGET, tmp_path / "out.gguf", outtype="f16")
    assert os.listdir(tmp_path) == ["in"]
    convert(folder, TARGET, tmp_path / "out.gguf", outtype="bf16")


@pytest.mark.parametrize("outtype", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_scrambled_quantisation_fails_the_self_test(
    outtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convert import quantise

    real = quantise.quants.quantize

    def scrambled(rows: Any, kind: Any) -> Any:
        return real(rows[:, ::-1], kind)

    monkeypatch.setattr(quantise.quants, "quantize", scrambled)
    with pytest.raises(ConversionError, match="self-test"):
        convert(FIXTURES / "tiny-plain", TARGET, tmp_path / "out.gguf", outtype=outtype)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("outtype", ["f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_outliers_pass_the_self_test(outtype: str, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    random = np.random.default_rng(7)
    heavy = random.standard_cauchy((64, 64)).astype(np.float32)
    drafter.tensors[Q] = np.clip(heavy, -3e4, 3e4)
    lone = np.zeros((64, 64), np.float32)
    lone[:, ::32] = 1
    drafter.tensors["layers.0.self_attn.o_proj.weight"] = lone
    drafter.tensors["layers.1.self_attn.o_proj.weight"] = np.zeros((64, 64), np.float32)
    convert(drafter.save(tmp_path / "in"), TARGET, tmp_path / "out.gguf", outtype=outtype)


def test_output_path_is_checked(tmp_path: Path) -> None:
    folder = Drafter.load("tiny-plain").save(tmp_path / "in")
    target = tmp_path / "target.gguf"
    target.write_bytes(TARGET.read_bytes())
    (tmp_path / "link.gguf").symlink_to(target)
    before = target.read_bytes()
    for out, message in (
        (folder / "out.gguf", "lies in the input"),
        (folder / "model.safetensors", "lies in the input"),
        (target, "lies in the input"),
        (tmp_path / "link.gguf", "lies in the input"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "out.gguf", "no such folder"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert(folder, target, out)
    assert target.read_bytes() == before
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_inputs_are_checked(tmp_path: Path) -> None:
    folder = Drafter.load("tiny-plain").save(tmp_path / "in")
    out = tmp_path / "out.gguf"
    convert(folder, TARGET, tmp_path / "drafter.gguf")
    with pytest.raises(ConversionError, match="outtype 'q9_9'"):
        convert(folder, TARGET, out, outtype="q9_9")
    with pytest.raises(ConversionError, match="no such file"):
        convert(folder, tmp_path / "none.gguf", out)
    with pytest.raises(ConversionError, match="a drafter, not a target"):
        convert(folder, tmp_path / "drafter.gguf", out)
    with pytest.raises(ConversionError, match=r"no tokenizer\.json"):
        convert(folder, FIXTURES / "tiny-target" / "hf", out)
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ConversionError, match="mask_embedding"):
        convert(folder, TARGET, out)


def test_incomplete_folders(tmp_path: Path) -> None:
    drafter, out = Drafter.load("tiny-plain"), tmp_path / "out.gguf"
    folder = drafter.save_shards(tmp_path / "in", "weights", 2)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    second = folder / "weights-00002-of-00002.safetensors"
    second.rename(tmp_path / "aside")
    with pytest.raises(ConversionError, match=r"weights-00002-of-00002\.safetensors.*missing"):
        convert(folder, TARGET, out)
    (tmp_path / "aside").rename(second)
    index.write_text(text.replace('"norm.weight"', '"norm.other"'))
    with pytest.raises(ConversionError, match="does not match"):
        convert(folder, TARGET, out)
    index.write_text(text.replace("weights-00002", "../weights-00002"))
    with pytest.raises(ConversionError, match="not to a file beside it"):
        convert(folder, TARGET, out)
    index.unlink()
    with pytest.raises(ConversionError, match="several weight files"):
        convert(folder, TARGET, out)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConversionError, match=r"no \.safetensors weights"):
        convert(folder, TARGET, out)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConversionError, match="not valid JSON"):
        convert(folder, TARGET, out)
    (folder / "config.json").unlink()
    with pytest.raises(ConversionError, match="missing"):
        convert(folder, TARGET, out)
    assert not out.exists()
