"""The head of a drafter with a draft vocabulary: rows of the head that it would use without one.

That is the drafter's own head or, if it has embeddings only, those; else the target's, which may be
its embeddings as well. Rows of a GGUF target are copied as they are, so that each token kept has
the logit it would have had.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .config import DrafterConfig
from .errors import ConversionError
from .ggml_types import I64, GgmlType
from .gguf_read import GgufFile
from .quantise import ErrorMeter, OutType, choose_kind
from .safetensors import Checkpoint
from .split import part_paths
from .stored import Block, find_stored, stated_block
from .target import Target, hf_text_config
from .tensors import TensorPlan
from .vocabulary import DraftVocabulary, Ids

OUTPUT, TABLE = "output.weight", "d2t"
EMBEDDINGS = "token_embd.weight"
_SCALE = "output.scale"
_HF_HEAD = re.compile(r"(^|\.)lm_head\.weight$")
_HF_EMBEDDINGS = re.compile(r"(^|\.)embed_tokens\.weight$")

_CHUNK_ROWS = 512

Read = Callable[[Ids, ErrorMeter], bytes]
"""Some rows, as they go into the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """A whole head: `shape` is outermost first, `place` says for people where it is."""

    place: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: GgmlType
    note: str
    read: Read


@dataclass(frozen=True, slots=True)
class DraftHead:
    """The two tensors to write, and what they hold."""

    vocabulary: DraftVocabulary
    source: Source

    @property
    def plans(self) -> tuple[TensorPlan, TensorPlan]:
        """How the tensors appear in the map."""
        n_rows, source = len(self.vocabulary.ids), self.source
        rows = f"{n_rows} of {self.vocabulary.n_vocab} rows"
        head = TensorPlan(
            hf_name=source.name,
            hf_dtype=source.dtype,
            hf_shape=source.shape,
            name=OUTPUT,
            shape=(source.shape[1], n_rows),
            kind=source.kind,
            note=", ".join(filter(None, (rows, source.note))),
        )
        table = TensorPlan(
            hf_name="",
            hf_dtype="",
            hf_shape=(),
            name=TABLE,
            shape=(n_rows,),
            kind=I64,
            note="token ids of the rows",
        )
        return head, table

    @property
    def n_bytes(self) -> int:
        """Size of the rows."""
        return self.source.kind.n_bytes((self.source.shape[1], len(self.vocabulary.ids)))

    def pieces(self, name: str, meter: ErrorMeter) -> Iterator[bytes]:
        """The data of one of the tensors."""
        ids = self.vocabulary.ids
        if name == TABLE:
            yield ids.astype("<i8").tobytes()
            return
        for first in range(0, len(ids), _CHUNK_ROWS):
            yield self.source.read(ids[first : first + _CHUNK_ROWS], meter)


def find_head(
    checkpoint: Checkpoint,
    plans: tuple[TensorPlan, ...],
    config: DrafterConfig,
    target: Target,
    outtype: OutType,
    files: contextlib.ExitStack,
) -> Source:
    """The head to take rows from; `files` keeps open what it is read from.

    Raises `ConversionError` when there is none, or only a part of it.
    """
    if config.draft_vocab_size != config.vocab_size:
        raise ConversionError(
            f"{checkpoint.folder}: the drafter was trained with a draft vocabulary of "
            f"{config.draft_vocab_size} tokens, which is kept: leave --draft-vocab out"
        )
    own = {plan.name: plan for plan in plans}
    plan = own.get(OUTPUT) or own.get(EMBEDDINGS)
    if plan is not None:
        return _stored(checkpoint, plan.hf_name, plan.hf_name, config.scale_block, outtype)
    source = (
        _from_folder(target, outtype, files)
        if target.path.is_dir()
        else _from_gguf(target.path, files)
    )
    n_rows, n_columns = source.shape if len(source.shape) == 2 else (0, 0)
    if n_columns != target.n_embd or n_rows < target.vocab_size:
        raise ConversionError(
            f"{source.place} has shape {list(source.shape)}, expected at least "
            f"{target.vocab_size} rows of {target.n_embd}: is the target complete?"
        )
    return source


def _stored(
    checkpoint: Checkpoint, name: str, shown: str, block: Block | None, outtype: OutType
) -> Source:
    """A head in safetensors, to be converted; `shown` is its name in the map."""
    stored = find_stored(checkpoint, name, block)
    kind, note = choose_kind(OUTPUT, stored.info.shape, outtype)

    def read(rows: Ids, meter: ErrorMeter) -> bytes:
        data = meter.encode(stored.rows(rows))
        stored.release()
        return data

    place = f"{name} in {stored.shard.path}"
    return Source(place, shown, stored.dtype, stored.info.shape, kind, note, read)


def _from_folder(target: Target, outtype: OutType, files: contextlib.ExitStack) -> Source:
    checkpoint = files.enter_context(Checkpoint(target.path))
    config = hf_text_config(target.path)
    tied = config.get("tie_word_embeddings")
    heads = [name for name in checkpoint.tensors if _HF_HEAD.search(name)]
    embeddings = [name for name in checkpoint.tensors if _HF_EMBEDDINGS.search(name)]
    # A checkpoint without a head shares it with the embeddings even if the configuration, relying
    # on a default, does not say so.
    found = embeddings if tied is True or (tied is None and not heads) else heads
    if len(found) != 1:
        raise ConversionError(
            f"{target.path}: {len(found)} tensors look like the target's head (lm_head.weight, or "
            "embed_tokens.weight where tie_word_embeddings is true): pass the target's GGUF"
        )
    block = stated_block(config.get("quantization_config"))
    return _stored(checkpoint, found[0], f"{found[0]} (target)", block, outtype)


def _from_gguf(path: Path, files: contextlib.ExitStack) -> Source:
    first = files.enter_context(GgufFile(path))
    parts = [first, *(files.enter_context(GgufFile(part)) for part in part_paths(first)[1:])]
    if any(_SCALE in part.tensors for part in parts):
        raise ConversionError(
            f"{path}: the target's head has a scale of its own ({_SCALE}), which a drafter's head "
            "cannot have: leave --draft-vocab out"
        )
    holders = {
        name: part for part in parts for name in (OUTPUT, EMBEDDINGS) if name in part.tensors
    }
    name = OUTPUT if OUTPUT in holders else EMBEDDINGS
    if name not in holders:
        raise ConversionError(
            f"{path}: neither {OUTPUT} nor {EMBEDDINGS} is in this file: pass the complete model"
        )
    file = holders[name]
    entry = file.tensors[name]
    if not entry.kind.is_known:
        raise ConversionError(f"{file.path}: {entry.kind.refusal(name)}")

    def read(rows: Ids, _meter: ErrorMeter) -> bytes:
        return file.row_bytes(name, rows.tolist())

    shape = tuple(reversed(entry.shape))
    place = f"{name} in {file.path}"
    return Source(place, f"{name} (target)", entry.kind.name, shape, entry.kind, "copied", read)
