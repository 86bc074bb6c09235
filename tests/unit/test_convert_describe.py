"""`describe` and `fits`: what a file is, and whether two belong together."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from gguf.constants import GGUFValueType

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import FIXTURES, TARGET, Drafter  # noqa: E402

from convert import ConversionError, FormatError, convert, describe, fits  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402
from convert.gguf_write import Metadata, array, scalar, write_header  # noqa: E402
from convert.target import copy_value  # noqa: E402
from tests.tools.published import PUBLISHED  # noqa: E402

HF_TARGET = FIXTURES / "tiny-target" / "hf"
TOKENS = "tokenizer.ggml.tokens"


@pytest.fixture(name="drafter")
def drafter_file(tmp_path: Path) -> Path:
    out = tmp_path / "drafter.gguf"
    convert(FIXTURES / "tiny-window", TARGET, out)
    return out


def changed_target(path: Path, *changes: Metadata) -> Path:
    """The tiny target's header, without weights, with some keys replaced or added."""
    with GgufFile(TARGET) as file, path.open("wb") as out:
        entries = {key: copy_value(file, key) for key in file.values}
        entries |= {entry.key: entry for entry in changes}
        write_header(out, list(entries.values()), [])
    return path


def test_a_drafter_file(drafter: Path) -> None:
    found = describe(drafter)
    assert (found.container, found.kind, found.title) == ("GGUF", "drafter", "DFlash2 drafter")
    assert (found.n_layers, found.n_embd, found.n_ctx, found.vocab_size) == (2, 64, 512, 160)
    assert (found.quantisation, found.tokenizer, found.n_tensors) == ("Q8_0", "llama", 36)
    assert found.n_bytes == drafter.stat().st_size
    assert found.types == {"F16": 2, "F32": 14, "Q8_0": 20}
    facts = found.drafter
    assert facts is not None
    assert (facts.version, facts.block_size, facts.window, facts.causal) == (2, 8, 8, False)
    assert (facts.target_layers, facts.n_feature, facts.mask_token_id) == ((1, 3), 128, 5)
    assert (facts.conv_kernel_size, facts.conv_group_size) == (2, 16)
    assert (facts.selector_rank, facts.selector_top_k) == (8, 4)


def test_a_folder_that_leaves_the_vocabulary_to_the_target(tmp_path: Path) -> None:
    folder = PUBLISHED["Muse-Glimmer-30B-assistant"].save(tmp_path / "assistant")
    found = describe(folder)
    assert found.drafter is not None
    assert (found.drafter.version, found.drafter.block_size, found.drafter.causal) == (1, 16, False)
    assert (found.drafter.n_feature, found.vocab_size) == (192, None)
    assert not fits(folder, TARGET)
    few = array(TOKENS, GGUFValueType.STRING, ["a"] * 5)
    (problem,) = fits(folder, changed_target(tmp_path / "few.gguf", few))
    assert "mask token" in problem


def test_a_drafter_folder_says_the_same(drafter: Path) -> None:
    file, folder = describe(drafter), describe(FIXTURES / "tiny-window")
    assert file.drafter
    assert folder.drafter
    for name in ("version", "block_size", "target_layers", "n_feature", "mask_token_id", "window"):
        assert getattr(file.drafter, name) == getattr(folder.drafter, name)
    for name in ("n_layers", "n_embd", "n_ctx", "vocab_size", "n_tensors", "n_parameters"):
        assert getattr(file, name) == getattr(folder, name)
    v1 = describe(FIXTURES / "tiny-v1")
    assert v1.drafter
    assert (v1.drafter.version, v1.title) == (1, "DFlash (v1) drafter")


def test_a_folder_with_unknown_keys_can_still_be_described(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["dflash_config"]["trick"] = {"nested": 1}
    assert describe(drafter.save(tmp_path / "in")).kind == "drafter"


@pytest.mark.parametrize("path", [TARGET, HF_TARGET])
def test_a_target(path: Path) -> None:
    found = describe(path)
    assert (found.kind, found.n_layers, found.n_embd, found.vocab_size) == ("model", 4, 64, 160)
    assert found.drafter is None
    assert found.title.endswith("model")


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        describe(tmp_path / "none")
    with pytest.raises(FormatError, match="missing"):
        describe(tmp_path)
    (tmp_path / "text").write_text("hello, this is no model at all")
    with pytest.raises(FormatError, match="not a GGUF"):
        describe(tmp_path / "text")


def test_pairs_that_fit(drafter: Path, tmp_path: Path) -> None:
    for target in (TARGET, HF_TARGET):
        assert fits(drafter, target) == []
        assert fits(FIXTURES / "tiny-v1", target) == []
    with GgufFile(TARGET) as file:
        tokens = file.get(TOKENS)
    tokens[7] = "<|renamed|>"
    renamed = array(TOKENS, GGUFValueType.STRING, tokens)
    assert fits(drafter, changed_target(tmp_path / "t.gguf", renamed)) == []


U32, I32 = GGUFValueType.UINT32, GGUFValueType.INT32
MISFITS = {
    "hidden size": (scalar("llama.embedding_length", U32, 128), "hidden size"),
    "layers": (scalar("llama.block_count", U32, 2), "target layers"),
    "vocabulary": (array(TOKENS, GGUFValueType.STRING, ["a"] * 150), "vocabulary"),
    "tokens": (array(TOKENS, GGUFValueType.STRING, ["a"] * 160), "160 of 160|1[0-9]{2} of 160"),
    "mask": (array(TOKENS, GGUFValueType.STRING, ["a"] * 5), "mask token"),
    "rope": (array("llama.rope.dimension_sections", I32, [4, 2, 2, 0]), "M-RoPE"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_pairs_that_do_not_fit(case: str, drafter: Path, tmp_path: Path) -> None:
    change, message = MISFITS[case]
    problems = fits(drafter, changed_target(tmp_path / "t.gguf", change))
    assert any(re.search(message, problem) for problem in problems), problems


def test_swapped_arguments(drafter: Path) -> None:
    assert "not a drafter" in fits(TARGET, drafter)[0]
    assert "is a drafter itself" in fits(drafter, drafter)[0]
    with pytest.raises(ConversionError):
        fits(drafter, drafter.parent / "none")


def test_prediction_heads_are_not_layers(drafter: Path, tmp_path: Path) -> None:
    target = changed_target(
        tmp_path / "t.gguf",
        scalar("llama.block_count", U32, 5),
        scalar("llama.nextn_predict_layers", U32, 1),
    )
    assert describe(target).n_layers == 4
    assert fits(drafter, target) == []
    convert(FIXTURES / "tiny-plain", target, tmp_path / "again.gguf")
