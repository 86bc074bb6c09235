"""What a draft vocabulary costs in accepted tokens: `convert --measure`."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import pydflash2
from pydflash2._chat import ChatTemplate
from pydflash2.cli import _terminal
from pydflash2.cli._converter import convert
from pydflash2.errors import InvalidArgumentError, UnsupportedError

PROMPTS = (
    "Explain to a beginner how a compass works.",
    "Write a short story about a boat that is afraid of the sea.",
    "What should I think about before I adopt a dog?",
    "List ten things to pack for a week in the mountains.",
    "Write a Python function that counts the words in a text, with an example.",
    "Summarise how the steam engine changed the way people lived.",
    "Write a polite letter asking a landlord to repair a window.",
    "Compare trains and planes for a journey of 500 kilometres, in a table.",
    "How do I make a simple vegetable soup?",
    "What are the main parts of a cell, and what does each of them do?",
    "Give me a plan for learning to play the guitar in three months.",
    "Solve this step by step: a shop sells 3 pens for 2 euros; what do 12 pens cost?",
)

N_TOKENS = 64
"""Tokens per prompt."""

N_CTX = 1024

# Below this share of the acceptance length, a better choice of tokens is worth trying.
GOOD_SHARE = 0.97

HINT = (
    "More would be kept with counts from text like the texts to be generated (--vocab-text), or "
    "with a larger --draft-vocab."
)


@dataclass(slots=True)
class Outcome:
    """What one drafter did on all the prompts."""

    texts: list[tuple[int, ...]]
    n_cycles: int = 0
    n_accepted: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify, the bonus token included."""
        return (self.n_accepted + self.n_cycles) / self.n_cycles if self.n_cycles else 0.0


def check_arguments(args: argparse.Namespace) -> None:
    """Refuses --measure where there is nothing to measure; before the conversion, not after it."""
    if args.draft_vocab is None:
        raise InvalidArgumentError("--measure is about the draft vocabulary: add --draft-vocab N")
    if args.dry_run:
        raise InvalidArgumentError("--measure needs the file that --dry-run does not write")
    if args.target.is_dir():
        raise InvalidArgumentError(
            f"--measure runs the target, and {args.target} is a folder: give --target its GGUF file"
        )


def run(args: argparse.Namespace) -> None:
    """Compares the drafter just written with the same one over the full vocabulary."""
    _terminal.prepare_streams()
    status = Console(stderr=True, quiet=args.quiet)
    with (
        convert.terminable(),
        tempfile.TemporaryDirectory(prefix=".measure-", dir=args.outfile.absolute().parent) as name,
        _progress(status) as advance,
    ):
        full_path = Path(name) / "full.gguf"
        convert.convert(
            args.drafter,
            args.target,
            full_path,
            outtype=args.outtype,
            ignore_keys=args.ignore_key,
        )
        with pydflash2.Target(args.target, n_ctx=N_CTX) as target:
            prompts = _tokenize(target)
            with pydflash2.Drafter(full_path) as drafter:
                n_vocab, n_draft = drafter.info.n_vocab, drafter.info.block_size - 1
                full = measure(target, drafter, prompts, n_draft, advance)
            with pydflash2.Drafter(args.outfile) as drafter:
                reduced = measure(target, drafter, prompts, n_draft, advance)
    console = _terminal.make_console()
    console.print(_table(full, reduced, n_vocab, args.draft_vocab))
    console.print(_conditions(full, reduced, n_draft))
    if reduced.acceptance_length < GOOD_SHARE * full.acceptance_length:
        console.print(HINT)


def measure(
    target: pydflash2.Target,
    drafter: pydflash2.Drafter,
    prompts: list[list[int]],
    n_draft: int,
    advance: Callable[[], None],
) -> Outcome:
    """Generates after every prompt, always drafting n_draft tokens, and counts."""
    outcome = Outcome([])
    with pydflash2.Session(target, drafter, n_draft=n_draft) as session:
        for prompt in prompts:
            session.rewind(0)
            session.prefill(prompt)
            n_left, is_end = N_TOKENS, False
            while n_left > 0 and not is_end:
                step = session.step(n_left)
                n_left, is_end = n_left - len(step.tokens), step.is_end
            outcome.texts.append(session.tokens[len(prompt) :])
            advance()
        stats = session.stats()
    outcome.n_cycles, outcome.n_accepted = stats.n_cycles, stats.n_accepted
    return outcome


def _tokenize(target: pydflash2.Target) -> list[list[int]]:
    """The prompts as questions in a chat, or as they are for a target without a chat template."""
    vocab = target.vocab
    try:
        template = ChatTemplate(vocab)
    except UnsupportedError:
        return [vocab.tokenize(text, add_special=True, parse_special=False) for text in PROMPTS]
    chats = [template.render([{"role": "user", "content": text}], {}) for text in PROMPTS]
    return [vocab.tokenize(chat, add_special=False, parse_special=True) for chat in chats]


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[], None]]:
    """A bar over all prompts of both drafters, on terminals only."""
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("texts"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=2 * len(PROMPTS))
        yield lambda: progress.advance(task)


def _table(full: Outcome, reduced: Outcome, n_vocab: int, n_draft_vocab: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("drafter")
    for heading in ("tokens", "acceptance length", "share"):
        table.add_column(heading, justify="right")
    for name, n_rows, outcome in (
        ("full vocabulary", n_vocab, full),
        ("draft vocabulary", n_draft_vocab, reduced),
    ):
        length = outcome.acceptance_length
        share = f"{length / full.acceptance_length:.1%}" if full.n_cycles else "-"
        table.add_row(name, f"{n_rows:,}", f"{length:.3f}", share)
    return table


def _conditions(full: Outcome, reduced: Outcome, n_draft: int) -> str:
    n_tokens = sum(map(len, full.texts))
    same = (
        "the same text with both"
        if full.texts == reduced.texts
        else "the texts differ (rounding between close candidates)"
    )
    return f"{n_tokens} tokens over {len(PROMPTS)} prompts, {n_draft} drafted at a time; {same}"
