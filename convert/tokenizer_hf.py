"""The tokenizer block of a Hugging Face target folder, from `tokenizer.json` and without
transformers.

Byte-level BPE with a pre-tokenizer that is known here is read; for anything else the target's GGUF
is the way, because its tokenizer block is copied as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import SpecialVocab
from gguf.constants import GGUFValueType, TokenType

from .collect import entries, notebook
from .errors import ConversionError
from .gguf_write import Metadata, array, scalar
from .safetensors import read_json

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"

# Pre-tokenizer as `_fingerprint` writes it -> the name llama.cpp knows it by.
_KNOWN: dict[tuple[str, ...], str] = {
    ("bytes+regex",): "gpt-2",
    ("digits", "bytes+regex"): "smollm",
    (_CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _TAIL, "bytes"): "llama-bpe",
    (_CONTRACTIONS + _WORD + r"|\p{N}" + _TAIL, "bytes"): "qwen2",
}
_USE_GGUF = "Pass the target's GGUF file with --target instead: its tokenizer is copied as it is."
_MAX_VOCAB = 1 << 24


def _fingerprint(step: Any) -> tuple[str, ...]:
    """A pre-tokenizer as a tuple of its steps; steps that are not recognised make it unknown."""
    if not isinstance(step, dict):
        return ("?",)
    kind = step.get("type")
    if kind == "Sequence":
        steps = step.get("pretokenizers")
        return sum(map(_fingerprint, steps if isinstance(steps, list) else []), ())
    if kind == "ByteLevel":
        return ("bytes+regex" if step.get("use_regex", True) else "bytes",)
    if kind == "Digits" and step.get("individual_digits"):
        return ("digits",)
    if kind == "Split" and isinstance(step.get("pattern"), dict):
        return (str(step["pattern"].get("Regex", "?")),)
    return (f"? {kind}",)


def _looks_special(text: str) -> bool:
    """Tokens that some checkpoints forget to mark as special."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _token_table(
    raw: dict[str, Any], vocab_size: int, path: Path
) -> tuple[list[str], list[TokenType]]:
    """Texts and types of all `vocab_size` tokens; ids nobody claims become unused padding."""
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size

    def place(text: object, token_id: object, kind: TokenType) -> None:
        if not isinstance(text, str) or type(token_id) is not int or token_id < 0:
            raise ConversionError(f"{path}: malformed token {str(text)[:40]!r}. {_USE_GGUF}")
        if token_id >= vocab_size:
            raise ConversionError(
                f"{path}: token {text!r} has id {token_id}, the drafter's vocabulary ends at "
                f"{vocab_size - 1}: target and drafter do not belong together"
            )
        tokens[token_id] = text
        types[token_id] = kind

    for text, token_id in raw["model"]["vocab"].items():
        place(text, token_id, TokenType.NORMAL)
    added = raw.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if not isinstance(token, dict):
            raise ConversionError(f"{path}: malformed added token. {_USE_GGUF}")
        text = token.get("content")
        special = bool(token.get("special")) or (isinstance(text, str) and _looks_special(text))
        place(text, token.get("id"), TokenType.CONTROL if special else TokenType.USER_DEFINED)
    return tokens, types


def read_tokenizer(folder: Path, vocab_size: int) -> tuple[Metadata, ...]:
    """The `tokenizer.*` entries for `folder`, padded to `vocab_size` tokens.

    Raises `ConversionError` when the folder has no `tokenizer.json` or its tokenizer is of another
    kind.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ConversionError(f"{folder}: no tokenizer.json. {_USE_GGUF}")
    raw = read_json(path, "the tokenizer")
    model = raw.get("model")
    if (
        not isinstance(model, dict)
        or model.get("type", "BPE") != "BPE"
        or model.get("byte_fallback")
        or not isinstance(model.get("vocab"), dict)
        or not isinstance(model.get("merges"), list)
    ):
        raise ConversionError(f"{path}: not a byte-level BPE tokenizer. {_USE_GGUF}")
    pre = _KNOWN.get(_fingerprint(raw.get("pre_tokenizer")))
    if pre is None:
        raise ConversionError(f"{path}: its pre-tokenizer is not known here. {_USE_GGUF}")
    if vocab_size > _MAX_VOCAB:
        raise ConversionError(f"{path}: a vocabulary of {vocab_size} tokens is not plausible")
    tokens, types = _token_table(raw, vocab_size, path)
    writer = notebook()
    try:
        SpecialVocab(folder, load_merges=True).add_to_gguf(writer, quiet=True)
        special = entries(writer)
    except Exception as error:  # the package trusts these files; whatever it trips over is theirs
        raise ConversionError(
            f"{folder}: unreadable tokenizer files ({error}). {_USE_GGUF}"
        ) from error
    return (
        scalar("tokenizer.ggml.model", GGUFValueType.STRING, "gpt2"),
        scalar("tokenizer.ggml.pre", GGUFValueType.STRING, pre),
        array("tokenizer.ggml.tokens", GGUFValueType.STRING, tokens),
        array("tokenizer.ggml.token_type", GGUFValueType.INT32, [int(kind) for kind in types]),
        *special,
    )
