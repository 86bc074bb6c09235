"""Command line of the benchmark: one module per command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.tools.errors import ToolError

from . import compare, cost_curve, draft, hybrid, kernels


class Command(NamedTuple):
    """A command's two steps."""

    parse: Callable[[list[str]], argparse.Namespace]
    bench: Callable[[argparse.Namespace], int]


_COMPARE = Command(compare.parse, compare.bench)
_SUBCOMMANDS = {
    "cost-curve": Command(cost_curve.parse, cost_curve.bench),
    "draft": Command(draft.parse, draft.bench),
    "hybrid": Command(hybrid.parse, hybrid.bench),
    "kernels": Command(kernels.parse, kernels.bench),
}


def parse(argv: list[str]) -> tuple[Command, argparse.Namespace]:
    """The command that a command line names, and its arguments. Exits if they are wrong."""
    if argv and argv[0] in _SUBCOMMANDS:
        command = _SUBCOMMANDS[argv[0]]
        return command, command.parse(argv[1:])
    return _COMPARE, _COMPARE.parse(argv)


def main() -> int:
    """Runs one of the benches; 1 if something has to be fixed first, 130 if interrupted."""
    command, arguments = parse(sys.argv[1:])
    try:
        return command.bench(arguments)
    except ToolError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
