"""`pydflash2 convert`: the converter's own command line."""

from __future__ import annotations

import argparse

from pydflash2 import convert

EPILOG = """\
examples:
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    convert.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Converts, and returns the exit status."""
    status: int = convert.run(args)
    return status
