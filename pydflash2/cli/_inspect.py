"""`pydflash2 inspect`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from pydflash2.cli import _arguments, _terminal
from pydflash2.cli._converter import convert
from pydflash2.errors import ModelFormatError

EPILOG = """\
examples:
  pydflash2 inspect drafter.gguf
  pydflash2 inspect drafter.gguf --target target.gguf

With --target, the exit status is 1 if the two do not fit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    parser.add_argument("file", type=Path, metavar="FILE", help="a GGUF file, drafter or target")
    parser.add_argument(
        "--target", type=Path, metavar="FILE", help="say whether this target and the drafter fit"
    )
    _arguments.add_verbose(parser)


def run(args: argparse.Namespace) -> int:
    """Describes the file; 1 if it does not fit the target named."""
    _terminal.prepare_streams()
    console = _terminal.make_console()
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
