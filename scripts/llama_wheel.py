"""Builds llama-cpp-python once per processor type and keeps the wheel: prints the folder it is in.

Usage: python scripts/llama_wheel.py VERSION

llama-cpp-python is published as source, and compiling llama.cpp takes minutes. The wheel is kept in
${XDG_CACHE_HOME:-~/.cache}/pydflash2/wheels. llama.cpp is tuned to the processor it is compiled on,
so the folder's name says what it was built for; pip's own cache does not know, and is not used. A
damaged wheel is noticed by its checksum and built again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

CHECKSUM = "SHA256"


def processor() -> str:
    """What decides whether a binary tuned for one machine runs on another."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            # The instruction sets: "flags" on x86, "Features" on Arm.
            if line.lower().startswith(("flags", "features")):
                return " ".join(sorted(line.split(":", 1)[1].split()))
    return platform.processor()


def cache_root() -> Path:
    """Where everything is kept that is made or fetched once for all checkouts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pydflash2"


def cache_folder(version: str) -> Path:
    """Where the wheel for this version, machine and build configuration is kept."""
    built_for = "\n".join((sysconfig.get_platform(), processor(), os.environ.get("CMAKE_ARGS", "")))
    key = hashlib.sha256(built_for.encode()).hexdigest()[:12]
    return cache_root() / "wheels" / f"llama_cpp_python-{version}-{key}"


def checksum(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def is_intact(folder: Path) -> bool:
    """Whether the folder holds one wheel, and the one that was put there."""
    wheels = list(folder.glob("*.whl"))
    noted = folder / CHECKSUM
    return len(wheels) == 1 and noted.is_file() and noted.read_text() == checksum(wheels[0])


def run_patiently(command: list[str]) -> None:
    """Runs a long, silent command, saying every minute that it is still at work."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        while True:
            try:
                status = process.wait(timeout=60)
                break
            except subprocess.TimeoutExpired:
                minutes = (time.monotonic() - start) / 60
                print(f"  still compiling after {minutes:.0f} min", file=sys.stderr)
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


def build(version: str, folder: Path) -> None:
    """Compiles the wheel and moves it into place; what was there before is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"compiling llama.cpp, once, for 5 to 10 minutes: {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-cache-dir", "--no-deps"]
        command += ["--no-binary", "llama-cpp-python", "-w", scratch]
        # pip's messages must not mix with the folder's name on stdout.
        run_patiently([*command, f"llama-cpp-python=={version}"])
        (wheel,) = Path(scratch).glob("*.whl")
        for old in folder.glob("*.whl"):
            old.unlink()
        digest = checksum(wheel)
        wheel.rename(folder / wheel.name)
        (folder / CHECKSUM).write_text(digest)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build or find llama-cpp-python's wheel")
    parser.add_argument("version")
    version = parser.parse_args().version
    folder = cache_folder(version)
    if not is_intact(folder):
        build(version, folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
