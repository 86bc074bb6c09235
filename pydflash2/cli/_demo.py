"""`pydflash2 demo`."""

from __future__ import annotations

import argparse

from pydflash2.cli import _arguments, _generate, _terminal

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a short list of healthy breakfast ideas.",
    "Explain in simple words how rain is made.",
)

# An acceptance length below this means that most cycles drafted nothing.
RARELY = 1.1

EPILOG = """\
The target is SmolLM2-135M-Instruct (4-bit), the drafter comes with pydflash2. Each question is
answered twice: with drafting, which you see, and without, which is timed. Both must give the same
text.
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
    writer = _terminal.Writer(console)
    target, drafter = pydflash2.demo_pair()
    with pydflash2.load(
        target,
        drafter,
        n_ctx=1024,
        n_threads=args.threads,
        n_draft=args.n_draft,
        verbose=args.verbose,
    ) as llm:
        console.print(f"target   {target.name}", style="bold")
        console.print(f"drafter  {drafter.name}", style="bold")
        if console.is_terminal:
            console.print("accepted draft tokens look like this", style=_terminal.DRAFTED_STYLE)
        total, plain_total = _terminal.Meter(), _terminal.Meter()
        for question in QUESTIONS:
            console.print(f"\n> {question}", style="bold")
            prompt = llm.format_chat([{"role": "user", "content": question}])
            options: pydflash2.GenerateOptions = {"max_tokens": args.max_tokens}
            meter = _generate.stream(llm, prompt, options, writer, console)
            plain = _generate.measure_plain(llm, prompt, options)
            console.print(_terminal.summary(meter, plain), style="dim")
            total.add(meter)
            plain_total.add(plain)
        console.print(f"\nall together: {_terminal.summary(total, plain_total)}")
    if args.n_draft == "auto" and total.acceptance_length < RARELY:
        console.print(
            "Drafting does not pay for this pair on this machine, so it was hardly used. "
            "`pydflash2 demo --n-draft 3` drafts all the same.",
            style="dim",
        )
    return 0
