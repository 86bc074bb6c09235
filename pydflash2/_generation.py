"""One generating call: steps of a session in, chunks of text out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydflash2._options import GenerateSettings
from pydflash2._session import Session, Step
from pydflash2._text import TextStream
from pydflash2.errors import ContextFullError, Dflash2Error

FinishReason = Literal["end", "stop", "length", "context"]
"""end: the model ended its text. stop: a stop string came. length: max_tokens. context: the context
is full."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit of text, and whether its token was drafted (and accepted) or came from the target
    alone."""

    text: str
    is_drafted: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one verify added.

    Text and tokens may lag behind n_accepted: an unfinished character, and what may be the
    beginning of a stop string, come with a later chunk or, if a stop string it was, not at all.
    """

    pieces: tuple[Piece, ...]
    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: FinishReason | None  # set on the last chunk only

    @property
    def text(self) -> str:
        """The pieces' text, joined."""
        return "".join(piece.text for piece in self.pieces)


def generate_chunks(session: Session, options: GenerateSettings) -> Iterator[Chunk]:
    """Generates after the session's sequence; see Llama.stream.

    However it ends, also when closed early or by an exception, the sequence then holds what was
    there before and the tokens of the chunks handed out.
    """
    generation = _Generation(session, options)
    try:
        while generation.finish_reason is None:
            yield generation.next_chunk()
    finally:
        generation.cut()


class _Generation:
    def __init__(self, session: Session, options: GenerateSettings) -> None:
        self._session = session
        self._vocab = session.target.vocab
        self._text = TextStream(options.stop_strings)
        self._stops = bool(options.stop_strings)
        self._n_left = options.max_tokens
        self._n_before = session.n_tokens
        self._pushed: list[int] = []
        self._n_given = 0  # of them, handed out
        self.finish_reason: FinishReason | None = None

    def next_chunk(self) -> Chunk:
        try:
            step = self._session.step(self._n_left)
        except ContextFullError:
            if self._session.n_tokens == self._n_before:
                raise
            step = Step((), 0, 0, is_end=False)
            self.finish_reason = "context"
        pieces = self._push(step)
        begin, self._n_given = self._n_given, self._text.n_certain_tokens
        tokens = self._pushed[begin : self._n_given]
        return Chunk(
            tuple(pieces), tuple(tokens), step.n_drafted, step.n_accepted, self.finish_reason
        )

    def _push(self, step: Step) -> list[Piece]:
        """Takes the step's tokens up to a stop string, and settles whether they are the last."""
        pieces = []
        for i, token in enumerate(step.tokens):
            self._pushed.append(token)
            text = self._text.push(self._vocab.piece(token), self._spelling(token))
            pieces.append(Piece(text, is_drafted=i < step.n_accepted))
            if self._text.is_stopped:
                self.finish_reason = "stop"
                return pieces
        self._n_left -= len(step.tokens)
        if step.is_end:
            self.finish_reason = "end"
        elif self._n_left == 0:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            pieces.append(Piece(self._text.finish(), is_drafted=False))
        return pieces

    def _spelling(self, token: int) -> bytes:
        """Of a control token, where it can matter."""
        if self._stops and not self._vocab.piece(token):
            return self._vocab.text(token).encode()
        return b""

    def cut(self) -> None:
        n_kept = self._n_before + self._n_given
        if self._session.is_closed or self._session.n_tokens <= n_kept:
            return
        # A target that cannot go back keeps the surplus; the next call sees it in the session's
        # tokens and copes.
        with contextlib.suppress(Dflash2Error):
            self._session.rewind(n_kept)
