"""Stock llama.cpp beside this library, for a comparison that leaves nothing of ours in it.

It runs in a process of its own: once this library's kernels have been added to the CPU back end of
a process, they stay there.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from pydflash2.cli._terminal import Meter
from pydflash2.errors import BackendError


class StockLlama(AbstractContextManager["StockLlama"]):
    """The target alone, decoded by llama.cpp as it was installed. Waits without computing between
    calls. One thread at a time; a context manager that ends the process."""

    def __init__(self, target: Path, *, n_ctx: int, n_threads: int | None) -> None:
        """Starts the process; the first call waits until the target is loaded."""
        # A fork would inherit the kernels, and an OpenMP pool whose threads are gone.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, target, n_ctx, n_threads), daemon=True
        )
        self._process.start()
        other.close()

    def measure(self, prompt: list[int], max_tokens: int) -> Meter:
        """Decodes greedily. prompt: token ids.

        Raises BackendError if the process has ended, for whatever reason.
        """
        try:
            self._connection.send((prompt, max_tokens))
            meter = self._connection.recv()
        except (EOFError, OSError):
            raise BackendError("the process that runs stock llama.cpp has ended") from None
        assert isinstance(meter, Meter)
        # OpenMP's threads there spin for some milliseconds more, on cores that the next one needs
        time.sleep(0.1)
        return meter

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, target: Path, n_ctx: int, n_threads: int | None) -> None:
    """Answers requests until the other end is closed."""
    import pydflash2

    with pydflash2.load(target, n_ctx=n_ctx, n_threads=n_threads, kernels=False) as llm:
        while True:
            try:
                prompt, max_tokens = connection.recv()
            except (EOFError, KeyboardInterrupt):
                return
            meter = Meter()
            for _ in meter.watch(llm.stream(prompt, max_tokens=max_tokens)):
                pass
            connection.send(meter)
