"""The `pydflash2` command.

Exit status: 0 done; 1 a failure, told in one line on stderr; 2 a usage error; 130 after Ctrl-C.
Each command imports what it needs when it runs: --help and usage errors answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from pydflash2 import __version__
from pydflash2.errors import Dflash2Error

DESCRIPTION = "DFlash2 speculative decoding for GGUF models: the same text, in fewer passes."

EPILOG = """\
examples:
  pydflash2 demo
      a small model answering questions, with and without drafting
  pydflash2 generate -m target.gguf -d drafter.gguf --chat "Why is the sky blue?"
  pydflash2 chat -m target.gguf -d drafter.gguf
  pydflash2 convert drafter-folder --target target.gguf --outfile drafter.gguf
  pydflash2 inspect drafter.gguf --target target.gguf
  pydflash2 doctor
      check the installation

`pydflash2 COMMAND --help` tells a command's options.
"""

_COMMANDS = (
    ("demo", "show drafting at work on a small built-in pair of models"),
    ("generate", "continue a text, or answer one question"),
    ("chat", "talk with a model"),
    ("convert", "turn a Hugging Face drafter into GGUF"),
    ("inspect", "tell what a GGUF file holds, and whether a drafter fits a target"),
    ("doctor", "check the installation"),
)
"""Names and one-line help; `pydflash2.cli._<name>` has add_arguments(parser) and run(args)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line, sys.argv's by default, and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_verbose = "-v" in arguments or "--verbose" in arguments
    try:
        parser = _parser(arguments)
        args = parser.parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough. Python's own flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Dflash2Error, OSError, MemoryError) as error:
        if is_verbose:
            raise
        _report(str(error) or type(error).__name__)
    except Exception as error:
        if is_verbose:
            raise
        _report(f"unexpected {type(error).__name__}: {error} (run again with -v for the details)")
    return 1


def _report(message: str) -> None:
    one_line = " ".join(message.split())
    print(f"error: {one_line}", file=sys.stderr)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pydflash2",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pydflash2 {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, line in _COMMANDS:
        command = commands.add_parser(
            name,
            help=line,
            description=f"{line[0].upper()}{line[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == wanted:
            module = importlib.import_module(f"pydflash2.cli._{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
