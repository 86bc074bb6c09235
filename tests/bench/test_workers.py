"""Checks how tasks are given to processes of their own, and what comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from tests.tools.errors import ToolError
from tests.tools.worker_process import ask

WORKER = """
import sys
from tests.tools.errors import ToolError
from tests.tools.worker_process import serve

def where(request):
    import pydflash2
    return {"package": pydflash2.__file__, "said": request["said"]}

def refuse(request):
    raise ToolError("no such model", "name another")

def lack(request):
    import no_such_package

def crash(request):
    raise SystemExit("it broke")

def chat(request):
    print("a line of somebody's log")
    return {"is_fine": True}

if __name__ == "__main__":
    tasks = (where, refuse, lack, crash, chat)
    sys.exit(serve({task.__name__: task for task in tasks}))
"""


def asked(folder: Path, **request: Any) -> dict[str, Any]:
    (folder / "some_worker.py").write_text(WORKER)
    return ask("some_worker", request, environment={**os.environ, "PYTHONPATH": str(folder)})


def test_workers_use_the_installed_package(tmp_path: Path) -> None:
    """The source tree's has no native library, and need not be what was installed."""
    reply = asked(tmp_path, task="where", said="für")
    assert reply == {"package": pydflash2.__file__, "said": "für"}


def test_the_reply_is_the_last_line(tmp_path: Path) -> None:
    assert asked(tmp_path, task="chat") == {"is_fine": True}


@pytest.mark.parametrize(
    ("task", "problem", "remedy"),
    [
        ("refuse", "task refuse cannot run: no such model", "name another"),
        ("lack", "no_such_package cannot be imported", "pip install ."),
        ("crash", "failed (exit status 1):\nit broke", "names the cause"),
    ],
)
def test_failures_are_told(task: str, problem: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        asked(tmp_path, task=task)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_an_unknown_worker_is_an_error() -> None:
    with pytest.raises(ToolError, match="no_such_worker"):
        ask("bench.no_such_worker", {"task": "cost"})
