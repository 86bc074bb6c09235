"""The `convert` command: arguments, progress bar and tables."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from .converter import ConversionReport, convert
from .errors import ConversionError
from .head import DraftHead
from .quantise import OUTTYPES
from .vocabulary import Counts

CountText = Callable[[Path, list[Path]], Mapping[int, int]]
"""Counts the tokens of text files, given the target and the files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the `convert` command's arguments to a parser."""
    parser.add_argument("drafter", type=Path, metavar="DRAFTER_DIR", help="drafter folder (HF)")
    parser.add_argument(
        "--target",
        type=Path,
        required=True,
        metavar="GGUF|DIR",
        help="the target model: its GGUF file (preferred) or its Hugging Face folder",
    )
    parser.add_argument("--outfile", type=Path, required=True, metavar="GGUF", help="file to write")
    parser.add_argument(
        "--outtype",
        choices=list(OUTTYPES),
        default="q8_0",
        help="type of the large tensors (default: %(default)s)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the whole map and write nothing"
    )
    parser.add_argument(
        "--ignore-key",
        action="append",
        default=[],
        metavar="KEY",
        help="let an unknown configuration key pass (repeatable)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    group = parser.add_argument_group(
        "draft vocabulary", "Draft only the N most useful tokens: a smaller head, a faster draft."
    )
    group.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="tokens to keep; they are the most frequent ones, as far as the tokenizer's order "
        "tells, or as one of the next options says",
    )
    group.add_argument(
        "--vocab-counts",
        type=Path,
        metavar="FILE",
        help="how often tokens occur: lines of a token id and its count",
    )
    group.add_argument(
        "--vocab-text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="count the tokens of these text files (UTF-8)",
    )


def run(args: argparse.Namespace, *, count_text: CountText | None = None) -> int:
    """Run the `convert` command; returns 0, 1 after an error, or 130 when interrupted.

    `count_text` does the counting for --vocab-text, which needs a tokenizer.
    """
    console = Console(stderr=True, quiet=args.quiet)
    try:
        counts = _counts(args, count_text)
        with _terminable(), _progress_bar(console) as bar:
            report = convert(
                args.drafter,
                args.target,
                args.outfile,
                outtype=args.outtype,
                dry_run=args.dry_run,
                ignore_keys=args.ignore_key,
                draft_vocab=args.draft_vocab,
                vocab_counts=counts,
                progress=bar,
            )
    except ConversionError as error:
        Console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: nothing was written")
        return 130
    if args.dry_run:
        _print_map(Console(), report)
    _print_summary(console, report)
    return 0


def _counts(args: argparse.Namespace, count_text: CountText | None) -> Counts | None:
    """The counts that the options ask for."""
    for option in ("--vocab-counts", "--vocab-text"):
        value = getattr(args, option[2:].replace("-", "_"))
        if value is not None and args.draft_vocab is None:
            raise ConversionError(f"{option} is for choosing a draft vocabulary: add --draft-vocab")
    if args.vocab_text is None:
        return args.vocab_counts  # type: ignore[no-any-return]
    if args.vocab_counts is not None:
        raise ConversionError("give --vocab-counts or --vocab-text, not both")
    if count_text is None:
        raise ConversionError(
            "--vocab-text needs the target's tokenizer, which the converter on its own does not "
            "have: use `pydflash2 convert`, or count elsewhere and pass --vocab-counts"
        )
    return count_text(args.target, args.vocab_text)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination signal unwind like Ctrl-C, so that the temporary file goes too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Bar:
    """The progress callback of `convert`, shown as a bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def __call__(self, done: int, total: int, name: str) -> None:
        self._progress.update(
            self._task, completed=done, total=total, description=name, visible=True
        )


@contextmanager
def _progress_bar(console: Console) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield _Bar(progress)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _print_map(console: Console, report: ConversionReport) -> None:
    tensors = Table(title="Tensors", title_justify="left")
    for heading in ("checkpoint", "shape", "dtype", "file", "ggml shape", "type", "note"):
        tensors.add_column(heading, overflow="fold")
    for plan in report.tensors:
        cells = (
            plan.hf_name,
            _shape(plan.hf_shape),
            plan.hf_dtype,
            plan.name,
            _shape(plan.shape),
            plan.kind.name,
            plan.note,
        )
        tensors.add_row(*map(Text, cells))
    for left_out in report.ignored_tensors:
        cells_out = (
            left_out.hf_name,
            _shape(left_out.hf_shape),
            "",
            "ignored",
            "",
            "",
            left_out.reason,
        )
        tensors.add_row(*map(Text, cells_out), style="dim")
    console.print(tensors)

    keys = Table(title="Configuration", title_justify="left")
    for heading in ("key", "value", "file", "note"):
        keys.add_column(heading, overflow="fold")
    for use in report.keys:
        style = None if use.consumed else "dim"
        fate = use.gguf_key or ("used" if use.consumed else "ignored")
        cells_key = (use.key, use.value, fate, use.note)
        keys.add_row(*map(Text, cells_key), style=style)
    console.print(keys)

    metadata = Table(title="Metadata", title_justify="left")
    for heading in ("key", "type", "value"):
        metadata.add_column(heading, overflow="fold")
    for entry in report.metadata:
        metadata.add_row(*map(Text, (entry.key, entry.kind.name, entry.shown)))
    console.print(metadata)


def _print_summary(console: Console, report: ConversionReport) -> None:
    console.print(Text(f"layout: {report.layout}"))
    for decision in report.decisions:
        console.print(Text(f"  {decision}"))
    fallbacks = [plan for plan in report.tensors if plan.note.startswith("F16:")]
    for plan in fallbacks:
        console.print(Text(f"  {plan.name}: {plan.note}"))
    if report.head is not None:
        _print_vocabulary(console, report.head)
    size = f"{len(report.tensors)} tensors, {report.n_bytes / 1e6:.1f} MB"
    if report.outfile is None:
        console.print(Text(f"dry run: {size}, nothing written"))
        return
    worst = max(report.errors, key=lambda name: report.errors[name])
    console.print(
        Text(f"self-test passed: largest relative error {report.errors[worst]:.2g} in {worst}")
    )
    console.print(Text(f"wrote {report.outfile}: {size}"))


def _print_vocabulary(console: Console, head: DraftHead) -> None:
    kept = head.vocabulary
    line = f"draft vocabulary: {len(kept.ids)} of {kept.n_vocab} tokens, by {kept.order}"
    if kept.coverage is not None:
        line += f", with {kept.coverage:.2%} of all that was counted"
    console.print(Text(line), soft_wrap=True)
    if kept.always:
        console.print(Text(f"  kept in any case: {' '.join(kept.always)}"), soft_wrap=True)
    console.print(
        Text(
            f"  adds {head.n_bytes / 1e6:.1f} MB to file and memory: a second copy of these rows "
            f"of {head.source.place}"
        ),
        soft_wrap=True,
    )
