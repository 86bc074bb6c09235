"""Processes that fork: whatever was loaded before can be used in the child; once tokens have been
generated the child is told so, and never waits for threads it does not have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

BEFORE = {
    "enable_kernels": "pydflash2.enable_kernels()",
    "load": "llm = pydflash2.load(target, drafter, n_ctx=256, n_threads=2, n_draft=3)",
    "a load that fails": """
try:
    pydflash2.Drafter("no such file")
except pydflash2.ModelFileError:
    pass
""",
}
GENERATE = """
if llm is None:
    llm = pydflash2.load(target, drafter, n_ctx=256, n_threads=2, n_draft=3)
tokens = llm.generate([20, 30, 40], max_tokens=20).tokens
"""


def run(code: str, target: Path, drafter: Path) -> list[str]:
    """The lines that code prints in an interpreter of its own."""
    prelude = "import os, sys, pydflash2\n_, target, drafter = sys.argv\nllm = None\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prelude + code, str(target), str(drafter)],
        cwd=Path(sys.executable).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def in_a_child(code: str) -> str:
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    return f"""
sys.stdout.flush()
child = os.fork()
if child == 0:
{indented}    sys.stdout.flush()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("before", BEFORE)
def test_a_child_generates_if_its_parent_has_not(
    tiny_target: Path, tiny_drafter: Path, before: str
) -> None:
    expected = run(GENERATE + "print(tokens)\n", tiny_target, tiny_drafter)
    code = BEFORE[before] + in_a_child(GENERATE + "print(tokens)")
    assert run(code, tiny_target, tiny_drafter) == expected
    # the parent is none the worse for it
    code += GENERATE + "print(tokens)\n"
    assert run(code, tiny_target, tiny_drafter) == expected * 2


@pytest.mark.parametrize("model", ["its parent's", "its own"])
def test_a_child_is_told_that_its_parent_has_generated(
    tiny_target: Path, tiny_drafter: Path, model: str
) -> None:
    forget = "llm = None\n" if model == "its own" else ""
    attempt = "\n    ".join(GENERATE.strip().splitlines())
    child = f"""
try:
    {attempt}
except pydflash2.UnsupportedError as error:
    print(error)
"""
    (line,) = run(GENERATE + forget + in_a_child(child), tiny_target, tiny_drafter)
    assert "forked" in line
    assert "spawn" in line
