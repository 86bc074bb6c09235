"""`pydflash2 demo`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console

from pydflash2.cli import _arguments, _generate, _stock, _terminal

if TYPE_CHECKING:
    from pydflash2 import GenerateOptions, Llama

N_CTX = 1024

QUESTIONS = (
    "Write a Python function that checks whether a number is prime.",
    "Write a polite email that asks for a day off.",
    "What is the capital of France, and what is it known for?",
)

# An acceptance length below this means that most cycles drafted nothing.
RARELY = 1.1

EPILOG = """\
The target is SmolLM2-135M-Instruct (4-bit), the drafter comes with pydflash2. Each question is
answered three times: with drafting, which you see; without, which must give the same text; and by
llama.cpp alone, in a process of its own. All three are timed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=100, metavar="N", help="tokens per answer (100)"
    )
    _arguments.add_threads(parser)
    _arguments.add_n_draft(parser)
    _arguments.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Answers the questions, and returns the exit status."""
    import pydflash2

    _terminal.prepare_streams()
    console = _terminal.make_console(color=args.color)
    target, drafter = pydflash2.demo_pair()
    with (
        _stock.StockLlama(target, n_ctx=N_CTX, n_threads=args.threads) as stock,
        pydflash2.load(
            target,
            drafter,
            n_ctx=N_CTX,
            n_threads=args.threads,
            n_draft=args.n_draft,
            verbose=args.verbose,
        ) as llm,
    ):
        console.print(f"target   {target.name}", style="bold")
        console.print(f"drafter  {drafter.name}", style="bold")
        if console.is_terminal:
            console.print("accepted draft tokens look like this", style=_terminal.DRAFTED_STYLE)
        total = _ask_all(llm, stock, args.max_tokens, console)
    if args.n_draft == "auto" and 0.0 < total.acceptance_length < RARELY:
        console.print(
            "Drafting was hardly used: as measured meanwhile, it does not pay for this pair on "
            "this machine, or other programs made the measurements useless. "
            "`pydflash2 demo --n-draft 3` drafts all the same.",
            style="dim",
        )
    return 0


def _ask_all(
    llm: Llama, stock: _stock.StockLlama, max_tokens: int, console: Console
) -> _terminal.Meter:
    """Answers each question in all three ways, one after the other: a machine's speed drifts."""
    writer = _terminal.Writer(console)
    totals = [_terminal.Meter() for _ in range(3)]
    for question in QUESTIONS:
        console.print(f"\n> {question}", style="bold")
        prompt = llm.format_chat([{"role": "user", "content": question}])
        options: GenerateOptions = {"max_tokens": max_tokens}
        meters = (
            _generate.stream(llm, prompt, options, writer, console),
            _generate.measure_plain(llm, prompt, options),
            stock.measure(prompt, max_tokens),
        )
        console.print(_terminal.summary(*meters), style="dim")
        for total, meter in zip(totals, meters, strict=True):
            total.add(meter)
    console.print(f"\nall together: {_terminal.summary(*totals)}")
    return totals[0]
