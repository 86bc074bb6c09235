"""Token pieces in, text out: characters split over tokens, and stop strings that begin in one token
and end in another.

Everything is counted in bytes. UTF-8 never mistakes the middle of a character for the start of one,
so a stop string can be searched for in the bytes.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Sequence


class TextStream:
    """Releases the text of a growing token sequence as early as is safe.

    Held back are an unfinished character and anything that may be the beginning of a stop string.
    Once a stop string is complete, `is_stopped` is true and nothing after it is taken.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = [text.encode() for text in stop]
        self._longest = max((len(text) for text in self._stop), default=0)
        self._data = bytearray()
        self._shown = bytearray()  # per byte of _data: 1, or 0 for a control token's spelling
        self._released = 0  # bytes of _data already handed to the decoder
        self._ends: list[int] = []  # per token: bytes up to and including it
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.is_stopped = False

    def push(self, piece: bytes, spelling: bytes = b"") -> str:
        """Takes one token's bytes and returns the text that has become certain, perhaps "". Not
        after a stop.

        spelling: how a token without bytes is written, e.g. b"<|im_end|>": stop strings may hold
        it, the text never does.
        """
        begin = max(0, len(self._data) - self._longest + 1)
        self._data += piece + spelling
        self._shown += b"\1" * len(piece) + b"\0" * len(spelling)
        self._ends.append(len(self._data))
        matches = [at for text in self._stop if (at := self._data.find(text, begin)) >= 0]
        if matches:
            self.is_stopped = True
            del self._data[min(matches) :]
            return self._release(len(self._data), final=True)
        return self._release(len(self._data) - self._n_undecided(), final=False)

    def finish(self) -> str:
        """The text still held back, now that no more tokens come; U+FFFD for an unfinished
        character."""
        return self._release(len(self._data), final=True)

    @property
    def n_certain_tokens(self) -> int:
        """How many of the tokens pushed have all their text released. After a stop, the others are
        not part of the result: the first of them may still have begun before the stop string."""
        return bisect.bisect_right(self._ends, self._released)

    def _n_undecided(self) -> int:
        """Length of the longest tail that a stop string could still continue."""
        for n in range(min(self._longest - 1, len(self._data)), 0, -1):
            tail = bytes(self._data[-n:])
            if any(text.startswith(tail) for text in self._stop):
                return n
        return 0

    def _release(self, upto: int, *, final: bool) -> str:
        span = range(self._released, upto)
        fresh = bytes(self._data[at] for at in span if self._shown[at])
        self._released = max(self._released, upto)
        return self._decoder.decode(fresh, final)
