"""`pydflash2 convert`: the converter's own command line, and what needs the target to run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from pydflash2.cli._converter import convert

EPILOG = """\
examples:
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf --dry-run
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf \\
      --draft-vocab 16384 --vocab-text texts/*.txt --measure
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    convert.add_arguments(parser)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="after converting with --draft-vocab, run the target on a dozen prompts to see how "
        "many fewer tokens are accepted",
    )


def run(args: argparse.Namespace) -> int:
    """Converts, measures if asked to, and returns the exit status."""
    # Native library and llama.cpp are loaded for these two options alone.
    if args.measure:
        from pydflash2.cli import _convert_measure

        _convert_measure.check_arguments(args)

    def count_text(target: Path, files: list[Path]) -> Mapping[int, int]:
        from pydflash2.cli import _convert_text

        with Console(stderr=True, quiet=args.quiet).status("counting the tokens of the text"):
            return _convert_text.count_tokens(target, files)

    status: int = convert.run(args, count_text=count_text)
    if status == 0 and args.measure:
        _convert_measure.run(args)
    return status
