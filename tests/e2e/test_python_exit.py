"""What is freed when: nothing that a thread still uses, not even when the interpreter ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pydflash2

N_RUNS = 3

DAEMON = """
import os, sys, threading
import pydflash2

llm = pydflash2.load(sys.argv[1], sys.argv[2], n_ctx=4096)
session = llm.session
session.prefill([5, 6, 7])
prompt = [6 + i % 150 for i in range(4000)]
is_busy = threading.Event()

def step():
    if session.n_tokens > 400:
        session.rewind(3)
    session.step()

def prefill():
    session.rewind(3)
    session.prefill(prompt)

def open_target():
    pydflash2.Target(sys.argv[1])

def work():
    while True:
        is_busy.set()
        globals()[sys.argv[3]]()

threading.Thread(target=work, daemon=True).start()
is_busy.wait()
"""

# What the garbage collector does when it closes something in the middle of a call.
NESTED = """
import threading, time
from pydflash2._exit import native_call

is_inside = threading.Event()

def work():
    with native_call():
        is_inside.set()
        time.sleep(0.5)  # the interpreter ends meanwhile
        with native_call():
            pass

threading.Thread(target=work, daemon=True).start()
is_inside.wait()
"""

FORK = """
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(code: str, *arguments: object) -> None:
    """Runs code in an interpreter of its own, which must end well and in silence."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        cwd=Path(sys.executable).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("doing", ["step", "prefill", "open_target"])
def test_the_interpreter_ends_under_a_daemon_thread(
    tiny_target: Path, tiny_drafter: Path, doing: str
) -> None:
    for _ in range(N_RUNS):
        run(DAEMON, tiny_target, tiny_drafter, doing)


def test_a_call_within_a_call_goes_on_while_the_interpreter_ends() -> None:
    run(NESTED)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads(
    tiny_target: Path, tiny_drafter: Path
) -> None:
    run(DAEMON + FORK, tiny_target, tiny_drafter, "prefill")


def test_dropped_objects_are_freed(tiny_target: Path, tiny_drafter: Path) -> None:
    if pydflash2.enable_kernels().state != "active":
        pytest.skip("only packed weights can be counted, and there are no kernels here")
    gc.collect()
    before = pydflash2.enable_kernels().packed_bytes
    llm = pydflash2.load(tiny_target, tiny_drafter, n_ctx=256)
    assert pydflash2.enable_kernels().packed_bytes > before
    del llm
    gc.collect()
    assert pydflash2.enable_kernels().packed_bytes == before
