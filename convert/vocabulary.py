"""Which tokens a draft vocabulary keeps.

In this order, each by falling count and, where counts are equal, by rising id: tokens that are kept
always; tokens that were counted; single ASCII characters and then all other tokens that text is
made of, in the tokenizer's order; control tokens, unused ones and the like. Tokenizers that merge
pairs number their tokens as they made them, frequent ones first, so their order is the next best
thing to counts.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType, TokenType

from .errors import ConversionError, FormatError
from .gguf_write import Metadata

Ids = npt.NDArray[np.int64]
Counts = str | os.PathLike[str] | Mapping[int, int]
"""How often each token occurs in some text: a counts file (see `read_counts`), or id -> count."""

_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_TEMPLATE_KEY = "tokenizer.chat_template"
_TEXT_KINDS = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
_SPECIAL_KINDS = (TokenType.CONTROL, TokenType.USER_DEFINED)

_MAX_LINE_BYTES = 1024
_MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens kept.

    `ids` are ascending. `always` spells the tokens that any choice keeps. With counts, `n_counted`
    is the number of different tokens that were counted, `n_by_order` the number of tokens kept
    without a count because too few had one, and `coverage` the share of all counts that falls on
    kept tokens; None without counts.
    """

    ids: Ids
    n_vocab: int
    always: tuple[str, ...]
    n_counted: int | None
    n_by_order: int | None
    coverage: float | None

    @property
    def summary(self) -> str:
        """How many tokens are kept, and how they were chosen."""
        n_rows = len(self.ids)
        kept = f"{n_rows:,} of {self.n_vocab:,} tokens"
        if self.n_counted is None or self.n_by_order is None:
            return f"{kept}, by the tokenizer's order"
        if self.n_by_order == 0:
            return f"{kept}, by counts"
        # All counted tokens are kept if there is room for others.
        parts = f"{self.n_counted:,} by counts, {self.n_by_order:,} by the tokenizer's order"
        n_always = n_rows - self.n_counted - self.n_by_order
        return f"{kept}: {parts}" + (f", {n_always:,} kept in any case" if n_always else "")


class _Tokenizer:
    """A tokenizer block, as far as the choice depends on it."""

    def __init__(self, entries: tuple[Metadata, ...], n_vocab: int) -> None:
        self._entries = {entry.key: entry for entry in entries}
        self.texts = self._strings("tokenizer.ggml.tokens")
        kinds = self._entries.get("tokenizer.ggml.token_type")
        if kinds is None:
            self.kinds = np.full(n_vocab, TokenType.NORMAL, np.int32)
        elif len(kinds.raw) == 12 + 4 * n_vocab:
            self.kinds = np.frombuffer(kinds.raw, "<i4", offset=12)
        else:
            raise FormatError(
                f"the target's tokenizer does not have one token type, a 32-bit integer, for each "
                f"of its {n_vocab} tokens: convert the target again"
            )

    def _strings(self, key: str) -> list[bytes]:
        raw = self._entries[key].raw
        texts, at = [], 12
        while at < len(raw):
            (n_bytes,) = struct.unpack_from("<Q", raw, at)
            texts.append(raw[at + 8 : at + 8 + n_bytes])
            at += 8 + n_bytes
        return texts

    def ends(self) -> set[int]:
        """The tokens that the metadata names as ends of a text."""
        named = [self._entries[key] for key in _END_KEYS if key in self._entries]
        ids = {int.from_bytes(entry.raw, "little") for entry in named}
        return {i for i in ids if i < len(self.texts)}

    def spelled_in_templates(self) -> set[int]:
        """The special tokens that a chat template spells out."""
        templates = [
            entry.raw
            for key, entry in self._entries.items()
            if key.startswith(_TEMPLATE_KEY) and entry.kind is GGUFValueType.STRING
        ]
        special = np.flatnonzero(np.isin(self.kinds, _SPECIAL_KINDS))
        return {
            int(i)
            for i in special
            if self.texts[i] and any(self.texts[i] in template for template in templates)
        }


def read_counts(path: Path, n_vocab: int) -> dict[int, int]:
    """Read a counts file: lines of a token id and how often it occurs, two whole numbers.

    Lines that are empty or begin with # are skipped. Raises `FormatError`, with the line's number,
    for anything else.
    """
    counts: dict[int, int] = {}
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                raise FormatError(f"{path}:{number}: the line is too long for a counts file")
            fields = line.split()
            if not fields or fields[0].startswith(b"#"):
                continue
            token, count = _read_line(fields, f"{path}:{number}", n_vocab)
            if token in counts:
                raise FormatError(f"{path}:{number}: token {token} has a count already")
            counts[token] = count
    return counts


def _read_line(fields: list[bytes], where: str, n_vocab: int) -> tuple[int, int]:
    shown = [field[:40].decode("ascii", "backslashreplace") for field in fields[:3]]
    if len(fields) != 2:
        raise FormatError(
            f"{where}: expected a token id and its count, two whole numbers, not "
            f"{' '.join(shown)!r}"
        )
    for what, field, text in zip(("token id", "count"), fields, shown, strict=True):
        if not field.isdigit() or len(field) > 20:
            raise FormatError(f"{where}: {what} {text!r} is not a whole number of 0 or more")
    return _checked(int(fields[0]), int(fields[1]), where, n_vocab)


def _checked(token: int, count: int, where: str, n_vocab: int) -> tuple[int, int]:
    if not 0 <= token < n_vocab:
        raise FormatError(
            f"{where}: token id {token} is outside the target's vocabulary of {n_vocab}: count "
            "with the target's own tokenizer"
        )
    if not 0 <= count <= _MAX_COUNT:
        raise FormatError(f"{where}: count {count} is not between 0 and {_MAX_COUNT}")
    return token, count


def _as_array(counts: Counts, n_vocab: int) -> npt.NDArray[np.float64]:
    """Counts by id. Sums of them may pass 64 bits, so they are floats; each is exact."""
    if isinstance(counts, Mapping):
        where = "the counts given"
        pairs = dict(_checked(int(t), int(n), where, n_vocab) for t, n in counts.items())
    else:
        where = str(counts)
        pairs = read_counts(Path(counts), n_vocab)
    result = np.zeros(n_vocab)
    result[list(pairs)] = list(pairs.values())
    if not result.any():
        raise ConversionError(f"{where}: nothing was counted. Count a text that has tokens.")
    return result


def choose_vocabulary(
    tokenizer: tuple[Metadata, ...],
    n_vocab: int,
    n_rows: int,
    counts: Counts | None,
    top_k: int,
) -> DraftVocabulary:
    """Choose `n_rows` of `n_vocab` tokens; `tokenizer` is the target's metadata block.

    `top_k` is the number of candidates that the drafter's selector looks at. Raises
    `ConversionError` when `n_rows` is no useful number or the counts cannot be used.
    """
    if n_rows >= n_vocab:
        raise ConversionError(
            f"a draft vocabulary of {n_rows} is not smaller than the target's {n_vocab} tokens: "
            "leave --draft-vocab out, and the drafter uses the target's head"
        )
    table = _Tokenizer(tokenizer, n_vocab)
    always = sorted(table.ends() | table.spelled_in_templates())
    least = max(len(always), top_k)
    if n_rows < least:
        raise ConversionError(
            f"a draft vocabulary of {n_rows} is too small: the selector compares {top_k} tokens "
            f"and {len(always)} are kept always, so --draft-vocab must be at least {least}"
        )
    amounts = np.zeros(n_vocab) if counts is None else _as_array(counts, n_vocab)
    is_text = np.isin(table.kinds, _TEXT_KINDS)
    is_character = np.array([len(text) == 1 and text.isascii() for text in table.texts])
    group = np.where(is_text, 3, 4)
    group[is_text & is_character] = 2
    group[amounts > 0] = 1
    group[always] = 0
    kept = np.sort(np.lexsort((np.arange(n_vocab), -amounts, group))[:n_rows])
    return DraftVocabulary(
        ids=kept.astype(np.int64),
        n_vocab=n_vocab,
        always=tuple(table.texts[i].decode("utf-8", "replace") for i in always),
        n_counted=None if counts is None else int(np.count_nonzero(amounts)),
        n_by_order=None if counts is None else int(np.count_nonzero(group[kept] > 1)),
        coverage=None if counts is None else float(amounts[kept].sum() / amounts.sum()),
    )
