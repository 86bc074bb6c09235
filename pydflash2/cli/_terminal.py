"""What reaches the terminal: streamed text with accepted tokens in colour, status lines, progress.

Text goes to stdout and everything about it to stderr, so that a pipe receives the text alone.
Colour and progress appear on terminals only, and NO_COLOR is respected.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from pydflash2 import Chunk
    from pydflash2._generation import FinishReason

DRAFTED_STYLE = "green"
COLOR_CHOICES = ("auto", "always", "never")

PROGRESS_DELAY_S = 0.5
"""Prompts that take less than this are not worth a progress line."""


def make_console(*, stderr: bool = False, color: str = "auto") -> Console:
    """A console for stdout or stderr. color: one of COLOR_CHOICES."""
    return Console(
        stderr=stderr,
        force_terminal={"auto": None, "always": True, "never": False}[color],
        no_color=False if color == "always" else None,
        highlight=False,
        soft_wrap=True,
    )


class Writer:
    """Streams chunks to stdout."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._ends_line = True

    def write(self, chunk: Chunk) -> None:
        """Shows a chunk at once: accepted drafted tokens in colour, where there is colour."""
        for piece in chunk.pieces:
            if not piece.text:
                continue
            self._ends_line = piece.text.endswith("\n")
            if self.console.is_terminal:
                style = DRAFTED_STYLE if piece.is_drafted else ""
                # A model may write anything; escape sequences are not for it to send.
                shown = piece.text.replace("\x1b", "\N{SYMBOL FOR ESCAPE}")
                self.console.print(Text(shown, style), end="")
            else:
                self.console.file.write(piece.text)
        self.console.file.flush()

    def end_line(self) -> None:
        """Ends the last line if the text has not."""
        if not self._ends_line:
            self.console.file.write("\n")
            self.console.file.flush()
        self._ends_line = True


class Meter:
    """Counts and times streams: wall time from the first chunk on, so that prompts do not count."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._elapsed_s = 0.0
        self._n_timed = 0  # tokens that _elapsed_s was spent on
        self._n_cycles = 0
        self._n_accepted = 0
        self.finish_reason: FinishReason | None = None  # of the last stream

    def watch(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Hands the chunks of one stream on."""
        resumed = None
        for chunk in chunks:
            # The first token is read off the prompt's last logits: no cycle of its own.
            if resumed is not None:
                self._elapsed_s += time.perf_counter() - resumed
                self._n_timed += len(chunk.tokens)
                self._n_cycles += 1
                self._n_accepted += chunk.n_accepted
            self.tokens.extend(chunk.tokens)
            self.finish_reason = chunk.finish_reason
            yield chunk
            # What the caller did meanwhile, such as writing to a terminal, is not decoding.
            resumed = time.perf_counter()

    def add(self, other: Meter) -> None:
        """Counts another meter's streams too."""
        self.tokens += other.tokens
        self._elapsed_s += other._elapsed_s
        self._n_timed += other._n_timed
        self._n_cycles += other._n_cycles
        self._n_accepted += other._n_accepted

    @property
    def tokens_per_second(self) -> float:
        """0.0 before the second chunk."""
        return self._n_timed / self._elapsed_s if self._elapsed_s > 0 else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per cycle, the bonus token included; 0.0 before the first cycle."""
        return (self._n_accepted + self._n_cycles) / self._n_cycles if self._n_cycles else 0.0


def summary(
    meter: Meter,
    plain: Meter | None = None,
    stock: Meter | None = None,
    *,
    is_drafting: bool = True,
) -> str:
    """One line about a generation, e.g. "398 tok/s, acceptance length 2.17, 1.24x plain decoding,
    2.31x stock llama.cpp (measured), same text", and whether the text was cut short.

    plain: the same prompt decoded without drafting, which "same text" is about; stock: by llama.cpp
    alone.
    """
    if meter.tokens_per_second == 0.0:
        parts = ["too few tokens to time"]
    else:
        parts = [f"{meter.tokens_per_second:.0f} tok/s"]
    if is_drafting and meter.acceptance_length > 0.0:
        parts.append(f"acceptance length {meter.acceptance_length:.2f}")
    elif not is_drafting:
        parts.append("plain decoding")
    ratios = [
        f"{meter.tokens_per_second / other.tokens_per_second:.2f}x {name}"
        for name, other in (("plain decoding", plain), ("stock llama.cpp", stock))
        if other is not None and meter.tokens_per_second > 0 and other.tokens_per_second > 0
    ]
    if ratios:
        parts.append(", ".join(ratios) + " (measured)")
    if plain is not None:
        parts.append(_comparison(meter.tokens, plain.tokens))
    if meter.finish_reason == "length":
        parts.append(f"cut at {len(meter.tokens)} tokens")
    elif meter.finish_reason == "context":
        parts.append("cut: the context is full")
    return ", ".join(parts)


def _comparison(drafted: list[int], plain: list[int]) -> str:
    if drafted == plain:
        return "same text"
    same = next(
        (i for i, (a, b) in enumerate(zip(drafted, plain, strict=False)) if a != b),
        min(len(drafted), len(plain)),
    )
    return f"text differs from token {same + 1} on (rounding between close candidates)"


@contextlib.contextmanager
def prefill_progress(console: Console) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for GenerateOptions.on_prefill that shows long prompts' progress on a terminal,
    and removes it when the prompt is done; None elsewhere."""
    if not console.is_terminal:
        yield None
        return
    begin = time.perf_counter()
    is_shown = False

    def report(n_done: int, n_total: int) -> None:
        nonlocal is_shown
        if n_done < n_total and time.perf_counter() - begin > PROGRESS_DELAY_S:
            console.file.write(f"\rreading the prompt: {n_done} of {n_total} tokens")
            is_shown = True
        elif is_shown:
            console.file.write("\r\x1b[K")
        console.file.flush()

    yield report


def prepare_streams() -> None:
    """Lets a terminal that cannot show a character show a substitute instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
