"""`pydflash2 inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pydflash2.cli import _arguments, _terminal
from pydflash2.cli._converter import convert
from pydflash2.errors import InvalidArgumentError, ModelFormatError

if TYPE_CHECKING:
    from pydflash2 import MemoryPlan

EPILOG = """\
examples:
  pydflash2 inspect drafter.gguf
  pydflash2 inspect drafter.gguf --target target.gguf
  pydflash2 inspect --plan -c 32768 target.gguf drafter.gguf

With --target, the exit status is 1 if the two do not fit; with --plan, if they do not fit into
memory.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    parser.add_argument("file", type=Path, metavar="FILE", help="a GGUF file, drafter or target")
    parser.add_argument(
        "drafter", type=Path, nargs="?", metavar="DRAFTER", help="with --plan: its drafter"
    )
    parser.add_argument(
        "--target", type=Path, metavar="FILE", help="say whether this target and the drafter fit"
    )
    _add_plan(parser)
    _arguments.add_verbose(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory")
    group.add_argument(
        "--plan",
        action="store_true",
        help="say what FILE, a target, and its drafter take of this machine's memory",
    )
    _arguments.add_context(group)


def run(args: argparse.Namespace) -> int:
    """Describes the file; 1 if it does not fit the target named, or into memory."""
    _terminal.prepare_streams()
    console = _terminal.make_console()
    if args.plan:
        return _print_plan(console, args)
    if args.drafter is not None:
        raise InvalidArgumentError("a second file goes with --plan; --target names a target")
    try:
        _print(console, convert.describe(args.file))
        if args.target is None:
            return 0
        problems: list[str] = convert.fits(args.file, args.target)
    except convert.ConversionError as error:
        raise ModelFormatError(str(error)) from error
    if not problems:
        console.print(f"fits {args.target}", style="green")
        return 0
    console.print(f"does not fit {args.target}:", style="bold red")
    for problem in problems:
        console.print(f"  {problem}", markup=False)
    return 1


def _print_plan(console: Console, args: argparse.Namespace) -> int:
    import pydflash2

    if args.target is not None:
        raise InvalidArgumentError("--plan takes the target first, then its drafter: no --target")
    found = pydflash2.plan(args.file, args.drafter, **_arguments.context_options(args))
    console.print(f"context {found.n_ctx:,} tokens", markup=False, highlight=False)
    for title, rows in _plan_rows(found):
        shown = [(name, size) for name, size in rows if size]
        if shown:
            console.print(title, style="bold", markup=False)
        for name, size in shown:
            console.print(f"  {name:<28}{_size(size):>12}", markup=False, highlight=False)
    console.print(f"{'total':<30}{_size(found.total_bytes):>12}", style="bold")
    available = "unknown" if found.available_bytes is None else _size(found.available_bytes)
    console.print(f"{'available':<30}{available:>12}", markup=False, highlight=False)
    if found.checkpoint_bytes:
        checkpoints = f"{'checkpoints, at most':<30}{_size(found.checkpoint_bytes):>12}"
        console.print(f"{checkpoints}  (made for long rewinds, besides)", highlight=False)
    if found.mapped_bytes:
        mapped = f"{'read from the files':<30}{_size(found.mapped_bytes):>12}"
        console.print(f"{mapped}  (mapped: kept as far as there is room)", highlight=False)
    if found.problem:
        console.print(f"does not fit: {found.problem}", style="bold red", markup=False)
        return 1
    console.print("fits", style="green")
    if found.note:
        console.print(found.note, style="yellow", markup=False)
    return 0


def _plan_rows(found: MemoryPlan) -> list[tuple[str, list[tuple[str, int]]]]:
    target = [
        ("weights, packed", found.target_packed_bytes),
        ("weights, copied", found.target_copied_bytes),
        ("K/V cache", found.attention_bytes),
        ("K/V cache, sliding windows", found.window_bytes),
        ("recurrent state", found.state_bytes),
        ("its copies, to go back to", found.rewind_bytes),
        ("compute buffers", found.compute_bytes + found.work_bytes),
        ("logits", found.logits_bytes),
    ]
    drafter = [
        ("weights, packed", found.drafter_packed_bytes),
        ("K/V cache", found.drafter_cache_bytes),
        ("compute buffers", found.drafter_compute_bytes),
        ("hidden states", found.drafter_features_bytes),
    ]
    return [("target", target), ("drafter", drafter)]


def _size(n_bytes: int) -> str:
    size = n_bytes / 1024
    for unit in ("KiB", "MiB"):
        if size < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def _print(console: Console, found: convert.Description) -> None:
    rows: list[tuple[str, str]] = [
        ("what", f"{found.title} ({found.container})"),
        ("name", found.name),
        ("layers", _count(found.n_layers)),
        ("hidden size", _count(found.n_embd)),
        ("context", _count(found.n_ctx, " tokens")),
        ("vocabulary", _count(found.vocab_size, " tokens") + _in_brackets(found.tokenizer)),
        ("parameters", f"{found.n_parameters / 1e6:,.1f} M in {found.n_tensors} tensors"),
        ("numbers", f"{found.quantisation}" + _in_brackets(_types(found.types))),
        ("size", f"{found.n_bytes / 1e6:,.1f} MB"),
        ("problem", found.problem),
    ]
    if found.drafter is not None:
        rows += _drafter_rows(found.drafter)
    for name, value in rows:
        if value:
            console.print(f"{name:<14}{value}", markup=False)


def _drafter_rows(facts: Any) -> list[tuple[str, str]]:
    attention = "causal" if facts.causal else "not causal"
    window = f"window of {facts.window} tokens" if facts.window else "no window"
    rows = [
        ("block", f"{facts.block_size} positions: drafts up to {facts.block_size - 1} tokens"),
        # The file counts layer inputs, people count layers.
        ("taps", "after target layers " + ", ".join(str(k - 1) for k in facts.target_layers)),
        ("mask token", _count(facts.mask_token_id)),
        ("attention", f"{attention}, {window}"),
    ]
    if facts.selector_rank is not None:
        rows += [
            ("convolution", f"kernel {facts.conv_kernel_size}, group {facts.conv_group_size}"),
            ("selector", f"rank {facts.selector_rank}, top {facts.selector_top_k}"),
        ]
    head = "its own" if facts.own_head else "the target's"
    head += _in_brackets(_count(facts.draft_vocab_size, " tokens"))
    choice = ("draft tokens", facts.draft_vocab_choice)
    return [*rows, ("head", head), choice, ("origin", facts.origin)]


def _count(value: int | None, unit: str = "") -> str:
    return "" if value is None else f"{value:,}{unit}"


def _types(types: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in types.items())


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
