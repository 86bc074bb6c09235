"""The end of the interpreter, while daemon threads are inside the native library.

The process then tears llama.cpp down. A thread that is still computing would crash it, so it is
waited for; one that comes later sleeps until the process is gone, which is what Python does with
daemon threads anyway.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

_condition = threading.Condition()
_n_inside = 0
_is_ending = False
_own = threading.local()  # is_inside: this thread is among those that are waited for


@contextlib.contextmanager
def native_call() -> Iterator[None]:
    """Around calls that may take long. Only daemon threads count: Python itself waits for others,
    and the main thread is the one that waits here."""
    global _n_inside
    # A call may come from within another one: the garbage collector runs there too, and closes.
    if not threading.current_thread().daemon or getattr(_own, "is_inside", False):
        yield
        return
    with _condition:
        _condition.wait_for(lambda: not _is_ending)
        _n_inside += 1
    _own.is_inside = True
    try:
        yield
    finally:
        _own.is_inside = False
        with _condition:
            _n_inside -= 1
            _condition.notify_all()


@atexit.register
def _wait_for_daemons() -> None:
    global _is_ending
    with _condition:
        _is_ending = True
        _condition.wait_for(lambda: _n_inside == 0)


def _forget_threads() -> None:
    """A forked child has none of its parent's."""
    global _condition, _n_inside
    _condition = threading.Condition()
    _n_inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
