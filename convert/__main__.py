"""`python -m pydflash2.convert`: the converter on its own."""

from __future__ import annotations

import argparse
import sys

from .cli import add_arguments, run


def main() -> int:
    """Parse the command line and convert; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pydflash2.convert", description="Convert a DFlash drafter to GGUF."
    )
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
