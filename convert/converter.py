"""Hugging Face drafter to GGUF: the plan, and its execution."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .config import DrafterConfig, read_config
from .errors import ConversionError
from .file_kinds import not_a_folder
from .gguf_read import GgufFile
from .gguf_write import Metadata, TensorHeader, padding, write_header
from .head import EMBEDDINGS, OUTPUT, TABLE, DraftHead, find_head
from .keys import KeyUse
from .metadata import build_metadata
from .quantise import OUTTYPES, ErrorMeter
from .safetensors import Checkpoint, Shard, TensorInfo, read_json
from .scales import settle_scales
from .stored import Stored, find_stored
from .target import Target, read_target
from .tensors import IgnoredTensor, TensorPlan, plan_tensors
from .vocabulary import Counts, choose_vocabulary

Progress = Callable[[int, int, str], None]
"""Called as `progress(bytes_done, bytes_total, tensor_name)` after each piece is written."""


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did, or with `dry_run` would do.

    `outfile` is None after a dry run. `errors` gives each tensor's relative root-mean-square error
    after reading back what was written (GGUF name -> error), empty after a dry run; `n_bytes` is
    the size of all tensor data. `head` is the reduced head, with `draft_vocab` only.
    """

    layout: str
    version: int
    outtype: str
    outfile: Path | None
    n_bytes: int
    tensors: tuple[TensorPlan, ...]
    ignored_tensors: tuple[IgnoredTensor, ...]
    keys: tuple[KeyUse, ...]
    metadata: tuple[Metadata, ...]
    decisions: tuple[str, ...]
    errors: Mapping[str, float]
    head: DraftHead | None


def convert(
    drafter_dir: str | os.PathLike[str],
    target: str | os.PathLike[str],
    outfile: str | os.PathLike[str],
    *,
    outtype: str = "q8_0",
    dry_run: bool = False,
    ignore_keys: Iterable[str] = (),
    draft_vocab: int | None = None,
    vocab_counts: Counts | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert a DFlash or DFlash2 drafter to a GGUF file of llama.cpp's `dflash` architecture.

    Args:
        drafter_dir: folder with the drafter's `config.json` and safetensors weights, in any of the
            three published layouts.
        target: the target model's GGUF file (preferred), or its Hugging Face folder. Tokenizer,
            rope type and layer count come from it.
        outfile: the file to write; replaced in one step if it exists. Must not lie inside an input
            folder.
        outtype: type of the large tensors: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.
        dry_run: make and check the whole plan, write nothing.
        ignore_keys: unknown configuration keys (dotted names) that are known not to matter.
        draft_vocab: give the drafter a head of its own with that many rows of the head it would use
            (see `vocabulary` for the tokens kept, `head` for where the rows come from).
        vocab_counts: how often each token occurs in some text, for that choice: a counts file, or
            id -> count. Without, the tokenizer's order decides.
        progress: called with bytes written, bytes in all and the tensor's name.

    Returns:
        The report: the map of tensors and keys, decisions taken, and the self-test's errors.

    Raises:
        ConversionError: the checkpoint, the target or the output path will not do; the text says
            why and what to do. Neither output nor temporary file is left behind, also when
            interrupted; a file that was at `outfile` before is untouched.
    """
    folder, target_path, out = Path(drafter_dir), Path(target), Path(outfile)
    _check_options(folder, outtype, draft_vocab, vocab_counts)
    _check_outfile(out, folder, target_path)
    if isinstance(vocab_counts, (str, os.PathLike)):
        _check_outfile(out, folder, Path(vocab_counts))
    try:
        config, model = _read_pair(folder, target_path, ignore_keys)
        with Checkpoint(folder) as checkpoint, contextlib.ExitStack() as files:
            plan = _plan(checkpoint, config, model, outtype, draft_vocab, vocab_counts, files)
            errors = {} if dry_run else _write(out, checkpoint, plan, progress)
    except OSError as error:
        raise ConversionError(f"{error.filename or out}: {error.strerror or error}") from error
    return plan.report(None if dry_run else out, errors)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to write."""

    config: DrafterConfig
    outtype: str
    tensors: tuple[TensorPlan, ...]
    ignored_tensors: tuple[IgnoredTensor, ...]
    metadata: tuple[Metadata, ...]
    decisions: tuple[str, ...]
    head: DraftHead | None

    @property
    def headers(self) -> list[TensorHeader]:
        """The tensors as the file announces them."""
        return [TensorHeader(plan.name, plan.shape, plan.kind) for plan in self.tensors]

    def report(self, outfile: Path | None, errors: Mapping[str, float]) -> ConversionReport:
        """The plan, and what came of it."""
        return ConversionReport(
            layout=self.config.layout,
            version=self.config.version,
            outtype=self.outtype,
            outfile=outfile,
            n_bytes=sum(header.n_bytes for header in self.headers),
            tensors=self.tensors,
            ignored_tensors=self.ignored_tensors,
            keys=_effective(self.config.key_uses, self.metadata),
            metadata=self.metadata,
            decisions=self.decisions,
            errors=errors,
            head=self.head,
        )


def _check_options(
    folder: Path, outtype: str, draft_vocab: int | None, vocab_counts: Counts | None
) -> None:
    if outtype not in OUTTYPES:
        raise ConversionError(f"outtype {outtype!r} is not one of {', '.join(OUTTYPES)}")
    problem = not_a_folder(folder)
    if problem:
        raise ConversionError(f"{folder}: {problem}. Pass the drafter's Hugging Face folder.")
    if draft_vocab is None and vocab_counts is not None:
        raise ConversionError("counts are for choosing a draft vocabulary: give its size as well")


def _read_pair(
    folder: Path, target: Path, ignore_keys: Iterable[str]
) -> tuple[DrafterConfig, Target]:
    path = folder / "config.json"
    raw = read_json(path, "the drafter's configuration")
    config = read_config(raw, path, ignore_keys=ignore_keys)
    _check_extras(folder)
    model = read_target(target)
    if config.vocab_size == 0:
        size = model.vocab_size
        config = replace(config, vocab_size=size, draft_vocab_size=size)
    _check_pair(config, model, path)
    return config, model


def _plan(
    checkpoint: Checkpoint,
    config: DrafterConfig,
    target: Target,
    outtype: str,
    draft_vocab: int | None,
    vocab_counts: Counts | None,
    files: contextlib.ExitStack,
) -> _Plan:
    """The whole plan; `files` keeps open what a head of its own is read from."""
    kind = OUTTYPES[outtype]
    plans, ignored = plan_tensors(checkpoint, config, kind)
    own = {plan.name for plan in plans}
    config = settle_scales(
        config,
        target.scales,
        shares_embeddings=EMBEDDINGS not in own,
        shares_head=own.isdisjoint((OUTPUT, EMBEDDINGS)),
    )
    head = None
    if draft_vocab is not None:
        source = find_head(checkpoint, plans, config, target, kind, files)
        top_k = config.selector.top_k if config.selector else 1
        kept = choose_vocabulary(
            target.tokenizer, target.vocab_size, draft_vocab, vocab_counts, top_k
        )
        head = DraftHead(kept, source)
        plans = (*(plan for plan in plans if plan.name != OUTPUT), *head.plans)
    vocabulary = head.vocabulary if head else None
    metadata = build_metadata(checkpoint.folder, config, target, plans, kind, vocabulary)
    decisions = config.decisions
    if target.problem:
        decisions += (f"the target cannot be run: {target.problem}",)
    return _Plan(config, outtype, plans, ignored, metadata, decisions, head)


def _effective(uses: tuple[KeyUse, ...], metadata: tuple[Metadata, ...]) -> tuple[KeyUse, ...]:
    """The key uses, corrected where a value turned out to need no entry in the file."""
    written = {entry.key for entry in metadata}
    return tuple(
        use
        if not use.gguf_key or use.gguf_key in written
        else replace(use, gguf_key="", note="nothing to write")
        for use in uses
    )


def _check_outfile(out: Path, folder: Path, target: Path) -> None:
    if out.is_dir():
        raise ConversionError(f"{out} is a folder: give the name of the file to write")
    if not out.absolute().parent.is_dir():
        raise ConversionError(f"{out.absolute().parent}: no such folder. Create it first.")
    resolved = out.resolve()
    for source in (folder, target):
        inside = source.is_dir() and source.resolve() in resolved.parents
        if inside or (out.exists() and source.exists() and out.samefile(source)):
            raise ConversionError(f"{out} lies in the input {source}: write somewhere else")


def _check_extras(folder: Path) -> None:
    if (folder / "mask_embedding.pt").exists():
        raise ConversionError(
            f"{folder}: mask_embedding.pt replaces the target's embedding of the mask token; such "
            "drafters are not supported"
        )


def _check_pair(config: DrafterConfig, target: Target, path: Path) -> None:
    """Refuse a drafter that was not made for this target."""
    if config.n_embd != target.n_embd:
        raise ConversionError(
            f"{path}: hidden_size {config.n_embd}, but {target.path} has {target.n_embd}. "
            "Drafter and "
            "target share embeddings and head: pass the target this drafter was trained for."
        )
    if config.n_target_layers not in (None, target.n_layers):
        raise ConversionError(
            f"{path}: made for a target of {config.n_target_layers} layers, {target.path} has "
            f"{target.n_layers}: pass the target this drafter was trained for"
        )
    if config.target_layers[-1] > target.n_layers:
        raise ConversionError(
            f"{path}: reads the output of layer {config.target_layers[-1] - 1} (counting from "
            "0), but "
            f"{target.path} has {target.n_layers} layers: pass the target this drafter was "
            "trained for"
        )
    if config.mask_token_id >= target.vocab_size:
        raise ConversionError(
            f"{path}: mask_token_id {config.mask_token_id} is outside the target's vocabulary of "
            f"{target.vocab_size}: pass the target this drafter was trained for"
        )
    if config.vocab_size != target.vocab_size:
        raise ConversionError(
            f"{path}: vocab_size {config.vocab_size}, but {target.path} has {target.vocab_size} "
            "tokens. "
            "Pass the target this drafter was trained for, converted with its padding tokens."
        )


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A temporary file beside `out` that takes its place on success and vanishes on any error."""
    if out.exists() and not out.is_file():
        raise ConversionError(f"{out} is not a regular file: give the path of a file to write")
    out = out.resolve()  # what a link leads to is replaced, not the link
    descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, temporary
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class _Data:
    """Where the tensors' data come from."""

    checkpoint: Checkpoint
    config: DrafterConfig
    head: DraftHead | None

    def pieces(self, plan: TensorPlan, meter: ErrorMeter) -> Iterator[bytes]:
        """One tensor's data, as it goes into the file."""
        if self.head is not None and plan.name in (OUTPUT, TABLE):
            yield from self.head.pieces(plan.name, meter)
            return
        if plan.name == TABLE:
            yield _target_ids(*self.checkpoint.tensors[plan.hf_name], self.config.vocab_size)
            return
        stored = find_stored(self.checkpoint, plan.hf_name, self.config.scale_block)
        for rows in _row_chunks(stored, plan):
            yield meter.encode(rows)


def _write(
    out: Path, checkpoint: Checkpoint, plan: _Plan, progress: Progress | None
) -> dict[str, float]:
    """Write the file; returns each tensor's error. See `convert` for the guarantees."""
    data = _Data(checkpoint, plan.config, plan.head)
    headers = plan.headers
    total = sum(header.n_bytes for header in headers)
    errors: dict[str, float] = {}
    done = 0
    with _replacing(out) as (file, temporary):
        write_header(file, plan.metadata, headers)
        for tensor, header in zip(plan.tensors, headers, strict=True):
            meter = ErrorMeter(tensor.hf_name, tensor.kind)
            n_written = 0
            for piece in data.pieces(tensor, meter):
                n_written += file.write(piece)
                if progress:
                    progress(done + n_written, total, tensor.name)
            if n_written != header.n_bytes:
                raise ConversionError(
                    f"tensor {tensor.name!r}: {n_written} bytes, not {header.n_bytes}"
                )
            errors[tensor.name] = meter.finish()
            file.write(padding(n_written))
            done += n_written
        file.flush()
        _check_written(temporary, headers, plan.metadata)
    return errors


def _check_written(path: Path, headers: list[TensorHeader], metadata: tuple[Metadata, ...]) -> None:
    """Read the finished file's header back: every key and tensor must be there, as planned."""
    with GgufFile(path) as written:
        keys = {entry.key: entry.raw for entry in metadata}
        same_keys = keys == {key: written.raw_value(key) for key in written.values}
        tensors = [(t.name, t.shape, t.kind) for t in written.tensors.values()]
        if not same_keys or tensors != [(h.name, h.shape, h.kind) for h in headers]:
            raise ConversionError(f"{path}: read back differently than written: is the disk sound?")


def _row_chunks(stored: Stored, plan: TensorPlan) -> Iterator[npt.NDArray[np.float32]]:
    """The tensor's rows as float32, [n, row length], a bounded number of values at a time."""
    if plan.head_dim is None:
        yield from stored.chunks(None)
        return
    order = _neox_order(plan.hf_shape[0], plan.head_dim)
    if len(plan.hf_shape) == 1:
        for row in stored.chunks(None):
            yield row[:, order]
    else:
        yield from stored.chunks(order)


def _neox_order(n_rows: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Row order that brings each head's even dimensions before its odd ones."""
    pairs = np.arange(n_rows, dtype=np.intp).reshape(-1, head_dim // 2, 2)
    order: npt.NDArray[np.intp] = pairs.transpose(0, 2, 1).reshape(-1)
    return order


def _target_ids(shard: Shard, info: TensorInfo, vocab_size: int) -> bytes:
    """The draft-to-target table as absolute token ids, little-endian 64-bit."""
    offsets = shard.array(info).astype(np.int64)
    ids = offsets + np.arange(offsets.size, dtype=np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size or np.unique(ids).size != ids.size:
        raise ConversionError(
            f"tensor {info.name!r}: its target ids leave the vocabulary of {vocab_size} or "
            "repeat: the "
            "checkpoint is damaged"
        )
    return ids.astype("<i8").tobytes()
