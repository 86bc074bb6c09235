"""The converter end to end: layouts, values, types, determinism, cleanliness, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import (  # noqa: E402
    DRAFTERS,
    FIXTURES,
    GGUF_NAMES,
    TARGET,
    Array,
    Drafter,
    mrope_target,
    to_bf16,
    write_safetensors,
)

from convert import ConversionError, convert  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402


def read_back(path: Path) -> dict[str, Array]:
    """All tensors of a GGUF as float32 in HF shape, by an independent reader."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            tuple(reversed(tensor.shape.tolist()))
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def types_of(path: Path) -> dict[str, str]:
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_fixture_tensor_survives(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    report = convert(FIXTURES / name, TARGET, out, outtype="f32")
    source, written = Drafter.load(name).tensors, read_back(out)
    assert {GGUF_NAMES[k] for k in source} == set(written)
    for hf, values in source.items():
        np.testing.assert_array_equal(written[GGUF_NAMES[hf]], values, err_msg=hf)
    assert report.version == (1 if name == "tiny-v1" else 2)
    assert report.outfile == out
    assert max(report.errors.values()) == 0
    assert os.listdir(tmp_path) == ["out.gguf"]


def test_keys_of_the_softcap_fixture(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert(FIXTURES / "tiny-softcap", TARGET, out)
    with GgufFile(out) as file:
        assert file.get("dflash.block_size") == 16
        assert file.get("dflash.conv_kernel_size") == 3
        assert file.get("dflash.logit_scale") == pytest.approx(0.2)
        assert file.get("dflash.final_logit_softcapping") == 20
        assert file.get("dflash.embedding_scale") == 2
        assert file.get("dflash.target_layers") == [1, 3]
        assert file.get("dflash.attention.causal") is False
        assert "dflash.attention.sliding_window" not in file.values


def test_window_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert(FIXTURES / "tiny-window", TARGET, out)
    with GgufFile(out) as file:
        assert file.get("dflash.attention.sliding_window") == 8
        assert file.get("dflash.attention.sliding_window_pattern") == [True, True]
        assert file.get("dflash.attention.causal") is False


def test_tokenizer_is_the_targets_byte_for_byte(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert(FIXTURES / "tiny-plain", TARGET, out)
    with GgufFile(out) as drafter, GgufFile(TARGET) as target:
        copied = [key for key in target.values if key.startswith("tokenizer.")]
        assert copied
        for key in copied:
            assert drafter.raw_value(key) == target.raw_value(key)
            assert drafter.values[key].kind == target.values[key].kind
        assert drafter.get("tokenizer.ggml.mask_token_id") == 5


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_types_follow_the_rules(outtype: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    report = convert(FIXTURES / "tiny-plain", TARGET, out, outtype=outtype)
    kinds, name = types_of(out), outtype.upper()
    small = outtype[:2] in ("q4", "q5")
    blocks = outtype.startswith("q")
    assert kinds["fc.weight"] == kinds["blk.1.ffn_down.weight"] == name
    assert kinds["blk.0.attn_norm.weight"] == kinds["enc.output_norm.weight"] == "F32"
    assert kinds["blk.0.attn_conv_base"] == kinds["blk.1.ffn_conv_base"] == "F32"
    assert kinds["blk.0.attn_conv_proj.weight"] == ("Q8_0" if small else name)
    assert kinds["selector_hidden.weight"] == ("Q8_0" if small else name)
    # Rows of 8 fill no block of 32.
    assert kinds["selector_successor.weight"] == ("F16" if blocks else name)
    notes = {plan.name: plan.note for plan in report.tensors}
    assert ("do not divide" in notes["selector_successor.weight"]) == blocks
    written = read_back(out)
    for hf, values in Drafter.load("tiny-plain").tensors.items():
        error = np.linalg.norm(written[GGUF_NAMES[hf]] - values) / np.linalg.norm(values)
        assert error == pytest.approx(report.errors[GGUF_NAMES[hf]], abs=1e-6)


def test_bf16_source_is_exact(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.tensors = {name: to_bf16(values) for name, values in drafter.tensors.items()}
    folder = drafter.save(tmp_path / "in")
    convert(folder, TARGET, tmp_path / "f32.gguf", outtype="f32")
    convert(folder, TARGET, tmp_path / "bf16.gguf", outtype="bf16")
    for out in ("f32.gguf", "bf16.gguf"):
        written = read_back(tmp_path / out)
        for hf, patterns in drafter.tensors.items():
            exact = (patterns.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_array_equal(written[GGUF_NAMES[hf]], exact)


@pytest.mark.parametrize("name", ["tiny-plain", "tiny-window", "tiny-v1"])
def test_speculators_export_gives_the_same_drafter(name: str, tmp_path: Path) -> None:
    published = Drafter.load(name)
    folder = published.to_speculators().save(tmp_path / name)
    report = convert(folder, TARGET, tmp_path / "a.gguf", outtype="f32")
    convert(published.save(tmp_path / "p" / name), TARGET, tmp_path / "b.gguf", outtype="f32")
    assert report.layout.startswith("speculators export")
    assert {t.reason for t in report.ignored_tensors} == {
        "training only",
        "copy of the target's embeddings",
        "copy of the target's head",
    }
    with GgufFile(tmp_path / "a.gguf") as a, GgufFile(tmp_path / "b.gguf") as b:
        skip = ("dflash2.converter.layout", "general.name")
        keys = {k: a.raw_value(k) for k in a.values if k not in skip}
        assert keys == {k: b.raw_value(k) for k in b.values if k not in skip}
        assert {n: a.tensor_bytes(n) for n in a.tensors} == {
            n: b.tensor_bytes(n) for n in b.tensors
        }


def test_reduced_vocabulary_keeps_head_and_table(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-v1").to_speculators()
    drafter.config["draft_vocab_size"] = 32
    drafter.tensors["lm_head.weight"] = np.full((32, 64), 0.5, np.float32)
    drafter.tensors["d2t"] = np.arange(32, dtype=np.int64) * 3
    drafter.tensors["t2d"] = np.zeros(160, np.uint8)
    out = tmp_path / "out.gguf"
    convert(drafter.save(tmp_path / "in"), TARGET, out, outtype="f32")
    with GgufFile(out) as file:
        assert file.tensors["output.weight"].shape == (64, 32)
        table = np.frombuffer(file.tensor_bytes("d2t"), "<i8")
        assert table.tolist() == [i * 4 for i in range(32)]
        assert "token_embd.weight" not in file.tensors


def test_optional_tensors_and_prefix_and_codebook_suffix(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    plain = drafter.tensors
    drafter.tensors = {}
    for name, values in plain.items():
        suffix = ".weight" if name.endswith("codebook") else ""
        drafter.tensors[f"model.{name}{suffix}"] = values
    drafter.tensors["embed_tokens.weight"] = np.full((160, 64), 2, np.float32)
    drafter.tensors["lm_head.weight"] = np.full((160, 64), 3, np.float32)
    drafter.tensors["layers.1.self_attn.sinks"] = np.arange(4, dtype=np.float32)
    drafter.tensors["model.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    out = tmp_path / "out.gguf"
    convert(drafter.save(tmp_path / "in"), TARGET, out, outtype="f32")
    written = read_back(out)
    assert (written["token_embd.weight"] == 2).all()
    assert (written["output.weight"] == 3).all()
    assert written["blk.1.attn_sinks.weight"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(
        written["selector_successor.weight"], plain["candidate_selector.successor_codebook"]
    )


def test_interleaved_rope_rows_are_reordered(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["rope_is_neox_style"] = False
    out = tmp_path / "out.gguf"
    convert(drafter.save(tmp_path / "in"), TARGET, out, outtype="f32")
    written = read_back(out)
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    q_norm = drafter.tensors["layers.0.self_attn.q_norm.weight"]
    np.testing.assert_array_equal(written["blk.0.attn_q_norm.weight"], q_norm[order])
    k = drafter.tensors["layers.1.self_attn.k_proj.weight"].reshape(2, 16, 64)
    np.testing.assert_array_equal(written["blk.1.attn_k.weight"].reshape(2, 16, 64), k[:, order])


def test_shards_with_an_odd_stem(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    (tmp_path / "s").mkdir()
    folder = drafter.save_shards(tmp_path / "s" / "d", "drafter_weights", 3)
    single = drafter.save(tmp_path / "d")
    (folder / "unrelated.safetensors").write_bytes(b"not read")
    convert(folder, TARGET, tmp_path / "a.gguf")
    convert(single, TARGET, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_output_is_deterministic_and_replaces(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    convert(FIXTURES / "tiny-plain", TARGET, out)
    first = out.read_bytes()
    out.write_bytes(b"older file")
    convert(FIXTURES / "tiny-plain", TARGET, out)
    assert out.read_bytes() == first


def test_source_revision_is_recorded(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = Drafter.load("tiny-v1").save(tmp_path / "snapshots" / revision)
    convert(folder, TARGET, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        assert file.get("dflash2.source.revision") == revision


def test_causality_is_decided_by_layer_type_when_unstated(tmp_path: Path) -> None:
    for name, causal in (("tiny-plain", False), ("tiny-window", True)):
        drafter = Drafter.load(name)
        del drafter.config["is_causal"]
        out = tmp_path / "out.gguf"
        report = convert(drafter.save(tmp_path / name), TARGET, out)
        assert any("by convention" in decision for decision in report.decisions)
        with GgufFile(out) as file:
            assert file.get("dflash.attention.causal") is causal


def test_sliding_layers_alone_are_causal_when_unstated(tmp_path: Path) -> None:
    """As those of the drafters for Qwen3.6; llama.cpp's key has one answer for all layers."""
    drafter = Drafter.load("tiny-window")
    del drafter.config["is_causal"]
    drafter.config["layer_types"] = ["sliding_attention", "full_attention"]
    out = tmp_path / "out.gguf"
    report = convert(drafter.save(tmp_path / "mixed"), TARGET, out)
    assert any("sliding layers alone" in decision for decision in report.decisions)
    with GgufFile(out) as file:
        assert file.get("dflash.attention.causal") is False
        assert file.get("dflash2.attention.causal_pattern") == [True, False]


def test_a_window_of_use_swa_is_not_causal(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    del drafter.config["is_causal"], drafter.config["layer_types"]
    drafter.config["dflash_config"] |= {"use_swa": True, "swa_window_size": 16}
    out = tmp_path / "out.gguf"
    convert(drafter.save(tmp_path / "swa"), TARGET, out)
    with GgufFile(out) as file:
        assert file.get("dflash.attention.causal") is False
        assert file.get("dflash.attention.sliding_window_pattern") == [True, True]


def test_yarn_scaling_and_partial_rotation(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": 5000,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "partial_rotary_factor": 0.5,
    }
    out = tmp_path / "out.gguf"
    convert(drafter.save(tmp_path / "in"), TARGET, out)
    with GgufFile(out) as file:
        assert file.get("dflash.rope.scaling.type") == "yarn"
        assert file.get("dflash.rope.scaling.factor") == 4
        assert file.get("dflash.rope.scaling.original_context_length") == 128
        assert file.get("dflash.rope.scaling.yarn_beta_fast") == 32
        assert file.get("dflash.rope.dimension_count") == 8
        assert file.get("dflash.rope.freq_base") == 5000


def test_dry_run_writes_nothing_and_lists_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")  # not a terminal: nothing is wrapped, one line per row
    out = tmp_path / "out.gguf"
    command = [str(FIXTURES / "tiny-softcap"), "--target", str(TARGET), "--outfile", str(out)]
    assert run_cli([*command, "--dry-run"]) == 0
    text = capsys.readouterr().out
    drafter = Drafter.load("tiny-softcap")
    for name in [*drafter.tensors, *GGUF_NAMES.values(), *drafter.config["dflash_config"]]:
        assert name in text
    for name in drafter.config:
        assert name in text
    assert "dflash.logit_scale" in text
    report = convert(FIXTURES / "tiny-softcap", TARGET, out, dry_run=True)
    lines = [line.split() for line in text.splitlines()]
    for plan in report.tensors:
        words = {plan.hf_name, plan.name, plan.kind.name}
        assert sum(words <= set(line) for line in lines) == 1
    for use in report.keys:
        assert sum(line[:1] == [use.key] for line in lines) == 1
    for entry in report.metadata:
        assert sum(line[:2] == [entry.key, entry.kind.name] for line in lines) == 1
    titles = 3 * 2  # each with a line of headings
    rows = len(report.tensors) + len(report.ignored_tensors) + len(report.keys)
    assert sum(map(bool, lines)) == titles + rows + len(report.metadata)
    assert os.listdir(tmp_path) == []


def test_dry_run_in_a_terminal_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = str(tmp_path / "out.gguf")
    command = [str(FIXTURES / "tiny-plain"), "--target", str(TARGET), "--outfile", out]
    assert run_cli([*command, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "┃" in text
    assert "selector_hidden.weight" in text


def test_report_accounts_for_every_key(tmp_path: Path) -> None:
    report = convert(FIXTURES / "tiny-softcap", TARGET, tmp_path / "o", dry_run=True)
    uses = {use.key: use for use in report.keys}
    written = {entry.key for entry in report.metadata}
    assert {use.gguf_key for use in report.keys if use.gguf_key} <= written
    assert uses["dflash_config.output_multiplier"].gguf_key == "dflash.logit_scale"
    assert uses["num_target_layers"].consumed
    assert uses["layer_types"].note == uses["hidden_act"].note == "nothing to write"
    assert not uses["use_cache"].consumed
    assert all(use.note for use in report.keys if not use.consumed)
    assert report.outfile is None
    assert not report.errors


def run_cli(arguments: list[str]) -> int:
    import argparse

    from convert import add_arguments, run

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_command_line_reports_errors_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.gguf")
    assert run_cli([str(tmp_path / "none"), "--target", str(TARGET), "--outfile", out]) == 1
    assert "no such file or folder" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, ConversionError])
def test_nothing_is_left_when_conversion_stops(error: type[BaseException], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"older file")

    def stop(done: int, total: int, _name: str) -> None:
        assert 0 < done <= total
        if done * 2 > total:
            raise error("stop")

    with pytest.raises(error):
        convert(FIXTURES / "tiny-plain", TARGET, out, progress=stop)
    assert os.listdir(tmp_path) == ["out.gguf"]
    assert out.read_bytes() == b"older file"


def sparse_checkpoint(folder: Path, *, n_ff: int = 0) -> Path:
    """A checkpoint whose large tensors are holes in the file: big to read, small on disk."""
    drafter = Drafter.load("tiny-plain")
    drafter.config["intermediate_size"] = n_ff
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(drafter.config))
    shapes = {n: list(t.shape) for n, t in drafter.tensors.items()}
    for layer in range(2):
        for side in ("gate", "up"):
            shapes[f"layers.{layer}.mlp.{side}_proj.weight"] = [n_ff, 64]
        shapes[f"layers.{layer}.mlp.down_proj.weight"] = [64, n_ff]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return folder


MEASURE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from convert import convert
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(sys.argv[2], sys.argv[3], sys.argv[4], outtype="f16")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts differently elsewhere")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    folder = sparse_checkpoint(tmp_path / "in", n_ff=400_000)
    assert (folder / "model.safetensors").stat().st_size > 600_000_000
    command = [sys.executable, "-c", MEASURE, ROOT, folder, TARGET, tmp_path / "out.gguf"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert int(result.stdout) < 150_000, "kilobytes above the start"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_nothing(number: signal.Signals, tmp_path: Path) -> None:
    folder = sparse_checkpoint(tmp_path / "in", n_ff=400_000)
    (tmp_path / "o").mkdir()
    command = [sys.executable, "-m", "convert", folder, "--target", TARGET, "--quiet"]
    command += ["--outfile", tmp_path / "o" / "out.gguf"]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not os.listdir(tmp_path / "o") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert os.listdir(tmp_path / "o") == []


def test_mrope_target_gets_degenerate_sections(tmp_path: Path) -> None:
    target = mrope_target(tmp_path / "target.gguf")
    convert(FIXTURES / "tiny-plain", target, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        assert file.get("dflash.rope.dimension_sections") == [8, 0, 0, 0]
        assert file.values["dflash.rope.dimension_sections"].element is gguf.GGUFValueType.INT32


def test_works_under_both_names(tmp_path: Path) -> None:
    """The package is installed as pydflash2.convert and must not need its parent."""
    parent = tmp_path / "pydflash2"
    parent.mkdir()
    (parent / "__init__.py").write_text("")
    (parent / "convert").symlink_to(ROOT / "convert", target_is_directory=True)
    code = (
        "import sys, pydflash2.convert as c; c.convert(*sys.argv[1:4]); "
        "print(sorted(m for m in sys.modules if m.startswith('pydflash2') and 'convert' not in m), "
        "'convert' in sys.modules)"
    )
    command = [sys.executable, "-c", code, FIXTURES / "tiny-v1", TARGET, tmp_path / "out.gguf"]
    result = subprocess.run(
        list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['pydflash2'] False"


def test_write_safetensors_helper_matches_fixture(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-v1")
    write_safetensors(tmp_path / "copy.safetensors", drafter.tensors)
    assert len((tmp_path / "copy.safetensors").read_bytes()) > 280_000
