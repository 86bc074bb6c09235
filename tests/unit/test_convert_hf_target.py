"""A Hugging Face folder as the target: the tokenizer block from tokenizer.json alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import FIXTURES, Drafter  # noqa: E402

from convert import ConversionError, convert, fits  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402

SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[str, Any] = {
    "qwen2": [{**SPLIT, "pattern": {"Regex": QWEN}}, {**BYTES, "use_regex": False}],
    "llama-bpe": [
        {**SPLIT, "pattern": {"Regex": QWEN.replace(r"\p{N}| ", r"\p{N}{1,3}| ")}},
        {**BYTES, "use_regex": False},
    ],
    "smollm": [{"type": "Digits", "individual_digits": True}, {**BYTES, "use_regex": True}],
    "gpt-2": [BYTES],
}


def save_target(folder: Path, pre: str = "qwen2", **changes: Any) -> Path:
    """A target folder with 150 plain tokens, 5 added ones and a padded vocabulary of 160."""
    folder.mkdir()
    config = json.loads((FIXTURES / "tiny-target" / "hf" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    tokenizer = {
        "model": {
            "type": "BPE",
            "vocab": {f"t{i}": i for i in range(150)},
            "merges": [["a", "b"], ["c", "d"]],
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "added_tokens": [
            {"id": 150, "content": "<|im_start|>", "special": True},
            {"id": 151, "content": "<|im_end|>", "special": True},
            {"id": 152, "content": "<|tool|>", "special": False},
            {"id": 153, "content": "<think>", "special": False},
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "eos_token": "<|im_end|>",
                "pad_token": {"content": "<|im_start|>"},
                "add_bos_token": False,
                "chat_template": "{{ messages }}",
            }
        )
    )
    return folder


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(tokenizer.get(key), dict):
            tokenizer[key].update(value)
        else:
            tokenizer[key] = value
    path.write_text(json.dumps(tokenizer))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_tokenizer_block(pre: str, tmp_path: Path) -> None:
    target, out = save_target(tmp_path / "target", pre), tmp_path / "out.gguf"
    convert(FIXTURES / "tiny-plain", target, out)
    with GgufFile(out) as file:
        tokens, kinds = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
        assert tokens[:2] == ["t0", "t1"]
        assert tokens[150:156] == [
            "<|im_start|>",
            "<|im_end|>",
            "<|tool|>",
            "<think>",
            "[PAD154]",
            "[PAD155]",
        ]
        assert kinds[148:156] == [1, 1, 3, 3, 3, 4, 5, 5]
        assert len(tokens) == len(kinds) == 160
        assert file.get("tokenizer.ggml.model") == "gpt2"
        assert file.get("tokenizer.ggml.pre") == pre
        assert file.get("tokenizer.ggml.merges") == ["a b", "c d"]
        assert file.get("tokenizer.ggml.eos_token_id") == 151
        assert file.get("tokenizer.ggml.padding_token_id") == 150
        assert file.get("tokenizer.ggml.add_bos_token") is False
        assert file.get("tokenizer.chat_template") == "{{ messages }}"
        assert file.get("tokenizer.ggml.mask_token_id") == 5
    assert fits(out, target) == []


def test_mrope_and_nested_configuration(tmp_path: Path) -> None:
    text = json.loads((FIXTURES / "tiny-target" / "hf" / "config.json").read_text())
    text["rope_parameters"] = {"rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    target = save_target(tmp_path / "target", text_config=text)
    (target / "config.json").write_text(json.dumps({"text_config": text}))
    convert(FIXTURES / "tiny-plain", target, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        assert file.get("dflash.rope.dimension_sections") == [8, 0, 0, 0]


BAD: dict[str, dict[str, Any]] = {
    "unigram": {"model": {"type": "Unigram"}},
    "byte fallback": {"model": {"byte_fallback": True}},
    "no merges": {"model": {"merges": None}},
    "unknown pre-tokenizer": {"pre_tokenizer": {"type": "Metaspace"}},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "malformed token": {"added_tokens": [{"id": "x", "content": "y"}]},
    "malformed list": {"added_tokens": [5]},
}


@pytest.mark.parametrize("case", BAD)
def test_other_tokenizers_ask_for_the_gguf(case: str, tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    edit(target, **BAD[case])
    with pytest.raises(ConversionError, match="GGUF"):
        convert(FIXTURES / "tiny-plain", target, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_token_outside_the_vocabulary(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    edit(target, added_tokens=[{"id": 160, "content": "late", "special": True}])
    with pytest.raises(ConversionError, match="do not belong together"):
        convert(FIXTURES / "tiny-plain", target, tmp_path / "out.gguf")


def test_strange_model_cards_do_no_harm(tmp_path: Path) -> None:
    folder = Drafter.load("tiny-plain").save(tmp_path / "in")
    target = save_target(tmp_path / "target")
    for card in ("---\n: [\n---\n", "---\ntags: [1, {a: 2}]\nlicense: {x: y}\n---\n", "\xff"):
        (folder / "README.md").write_bytes(card.encode("latin-1"))
        convert(folder, target, tmp_path / "out.gguf")


def test_model_card_is_recorded(tmp_path: Path) -> None:
    folder = Drafter.load("tiny-plain").save(tmp_path / "in")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [drafter]\n---\nText\n")
    convert(folder, save_target(tmp_path / "target"), tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        assert file.get("general.license") == "apache-2.0"
        assert file.get("general.tags") == ["drafter"]
