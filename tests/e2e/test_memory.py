"""Address space that holds a model as it is mapped, but not the packed copy of its weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, limits address space")

# Prints what opening takes, with so many bytes left if a limit is given.
SCRIPT = """
import logging, resource, sys, pydflash2
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
what, path, kernels, limit = sys.argv[1], sys.argv[2], sys.argv[3] == "on", int(sys.argv[4])
def size(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
if pydflash2.enable_kernels().state != "active":
    sys.exit("no kernels")
before = size("VmSize")
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (before + limit, before + limit))
try:
    if what == "drafter":
        with pydflash2.Drafter(path, kernels=kernels) as drafter:
            print("PACKED", drafter.info.packed_bytes)
            print("TAKEN", size("VmSize") - before)
    else:
        with pydflash2.load(path, n_ctx=256, n_threads=1, kernels=kernels) as llm:
            print("TEXT", repr(llm.generate("Once upon a time", max_tokens=8).text))
            print("PACKED", llm.stats().target_packed_bytes)
            print("TAKEN", size("VmSize") - before)
except pydflash2.OutOfMemoryError as error:
    print("ERROR", error)
"""


def opened(what: str, path: Path, kernels: str, limit: int = 0) -> dict[str, str]:
    """The lines that a process of its own prints, by their first word."""
    command = [sys.executable, "-c", SCRIPT, what, str(path), kernels, str(limit)]
    # glibc's malloc otherwise has 64 MB of address space in reserve for each thread that there was
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if "no kernels" in done.stderr:
        pytest.skip("kernels are not in use")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_target(smollm_target: Path) -> None:
    """Opened as it is mapped, with a warning; with less room still, the error says what to do."""
    stock = opened("target", smollm_target, "off")
    assert int(opened("target", smollm_target, "on")["PACKED"]) > 50_000_000
    found = opened("target", smollm_target, "on", int(stock["TAKEN"]) + 20_000_000)
    assert found["TEXT"] == stock["TEXT"]
    assert found["PACKED"] == "0"
    assert "packed weights" in found["WARNING"]
    refused = opened("target", smollm_target, "on", smollm_target.stat().st_size + 40_000_000)
    assert "kernels = false" in refused["ERROR"]


def test_a_target_that_cannot_be_mapped_either(smollm_target: Path) -> None:
    """Room for the file once, for its header to be read, but not beside what llama.cpp needs."""
    file_size = smollm_target.stat().st_size
    for room in (10_000_000, file_size + 600_000, file_size + 7_000_000):
        refused = opened("target", smollm_target, "off", room)
        assert "ERROR" in refused, room


def test_drafter(smollm_drafter: Path) -> None:
    """The same of a drafter."""
    stock = opened("drafter", smollm_drafter, "off")
    packed = int(opened("drafter", smollm_drafter, "on")["PACKED"])
    assert packed > 8_000_000
    found = opened("drafter", smollm_drafter, "on", int(stock["TAKEN"]) + 6_000_000)
    assert found["PACKED"] == "0"
    assert "no memory for packed weights" in found["WARNING"]
