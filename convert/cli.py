"""The `convert` command: arguments, progress bar and tables."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        with terminable(), _progress_bar(console) as bar:
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
def terminable() -> Iterator[None]:
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


class _Row:
    """A row of a table; what is not used is dimmed."""

    def __init__(self, *cells: str, is_used: bool = True) -> None:
        self.cells = cells
        self.is_used = is_used


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _print_table(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[_Row]
) -> None:
    """A table on terminals; elsewhere a line for each row, for programs that search lines."""
    if console.is_terminal:
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row.cells), style=None if row.is_used else "dim")
        console.print(table)
        return
    lines = [headings, *([cell.replace("\n", "\\n") for cell in row.cells] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0  # nothing follows
    console.print(Text(title))
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        console.print(Text("  ".join(cells).rstrip()), soft_wrap=True)
    console.print()


def _print_map(console: Console, report: ConversionReport) -> None:
    tensors = [
        _Row(
            plan.hf_name,
            _shape(plan.hf_shape),
            plan.hf_dtype,
            plan.name,
            _shape(plan.shape),
            plan.kind.name,
            plan.note,
        )
        for plan in report.tensors
    ]
    tensors += [
        _Row(out.hf_name, _shape(out.hf_shape), "", "ignored", "", "", out.reason, is_used=False)
        for out in report.ignored_tensors
    ]
    headings = ("checkpoint", "shape", "dtype", "file", "ggml shape", "type", "note")
    _print_table(console, "Tensors", headings, tensors)
    keys = [
        _Row(
            use.key,
            use.value,
            use.gguf_key or ("used" if use.consumed else "ignored"),
            use.note,
            is_used=use.consumed,
        )
        for use in report.keys
    ]
    _print_table(console, "Configuration", ("key", "value", "file", "note"), keys)
    metadata = [_Row(entry.key, entry.kind.name, entry.shown) for entry in report.metadata]
    _print_table(console, "Metadata", ("key", "type", "value"), metadata)


def _print_summary(console: Console, report: ConversionReport) -> None:
    lines = [f"layout: {report.layout}"]
    lines += [f"  {decision}" for decision in report.decisions]
    lines += [
        f"  {plan.name}: {plan.note}" for plan in report.tensors if plan.note.startswith("F16:")
    ]
    if report.head is not None:
        lines += _vocabulary_lines(report.head)
    count = f"{len(report.tensors)} tensors"
    if report.outfile is None:
        lines.append(f"dry run: {count}, {_size(report.n_bytes)} of data, nothing written")
    else:
        worst = max(report.errors, key=lambda name: report.errors[name])
        lines += [
            f"self-test passed: largest relative error {report.errors[worst]:.2g} in {worst}",
            f"wrote {report.outfile}: {count}, {_size(report.outfile.stat().st_size)}",
        ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _vocabulary_lines(head: DraftHead) -> list[str]:
    kept = head.vocabulary
    covered = "" if kept.coverage is None else f", with {kept.coverage:.2%} of all that was counted"
    lines = [f"draft vocabulary: {kept.summary}{covered}"]
    if kept.always:
        lines.append(f"  kept in any case: {' '.join(kept.always)}")
    if kept.n_by_order:
        lines.append(
            f"  advice: only {kept.n_counted:,} different tokens were counted, fewer than the "
            f"{len(kept.ids):,} to keep: count more text, or give a smaller --draft-vocab"
        )
    lines.append(
        f"  adds {_size(head.n_bytes)} to file and memory: a second copy of these rows of "
        f"{head.source.place}"
    )
    return lines


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 100_000 else f"{n_bytes / 1e3:.1f} kB"
