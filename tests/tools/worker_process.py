"""Tasks that need a process of their own: llama.cpp is loaded once, and with what, for good.

A worker is a module that ends in ``sys.exit(serve(TASKS))``. The request comes in on stdin as JSON,
the reply is the last line of stdout. In a worker ``import pydflash2`` finds the installed package,
with its compiled library: the repository stands last in its import path.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError

REPOSITORY = Path(__file__).resolve().parents[2]
_LIMIT_S = 600  # for one task; a healthy one takes seconds
_START = """
import runpy, sys
sys.path.append(sys.argv[1])
runpy.run_module(sys.argv[2], run_name="__main__")
"""

Task = Callable[[dict[str, Any]], dict[str, Any]]


def ask(
    worker: str, request: dict[str, Any], *, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """Has one task done by a worker, named as a module, in a new process.

    ``environment`` replaces this process's own. Raises ToolError if there is no reply.
    """
    with tempfile.TemporaryDirectory() as empty:  # Python looks for modules where it is started
        try:
            done = subprocess.run(
                [sys.executable, "-c", _START, str(REPOSITORY), worker],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                check=False,
                cwd=empty,
                env=environment,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolError(
                f"the task {request['task']} did not end within {_LIMIT_S} s",
                "a smaller --tokens or --context, or see what keeps the machine busy",
            ) from error
    return _reply(request["task"], done)


def _reply(task: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.splitlines()
    reply: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        reply = json.loads(lines[-1])
    if "error" in reply:
        raise ToolError(f"the task {task} cannot run: {reply['error']}", reply["remedy"])
    if done.returncode != 0 or not reply:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise ToolError(
            f"the task {task} failed (exit status {done.returncode}):\n{tail}",
            "the message above names the cause; --systems leaves a system out",
        )
    return reply


def serve(tasks: Mapping[str, Task]) -> int:
    """The worker's side: reads the request, runs its task, prints the reply."""
    request: dict[str, Any] = json.load(sys.stdin)
    try:
        reply = tasks[request["task"]](request)
    except ImportError as error:
        reply = {
            "error": f"{error.name or 'a package'} cannot be imported: {error}",
            "remedy": "install the project into the Python that runs this: pip install .",
        }
    except ToolError as error:
        reply = {"error": error.problem, "remedy": error.remedy}
    print(json.dumps(reply), flush=True)
    return 1 if "error" in reply else 0
