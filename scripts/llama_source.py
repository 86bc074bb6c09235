"""Fetches the source of llama.cpp's own tests once and keeps it: prints the folder.

Usage: python scripts/llama_source.py VERSION

It is in llama-cpp-python's source package of this version, but not in what is installed: the tests,
the library of helpers that they share, and the headers of both. It is kept, as the tree it was, in
${XDG_CACHE_HOME:-~/.cache}/pydflash2/sources, never in the repository. A damaged or missing file is
noticed by its checksum and all are fetched again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from llama_wheel import CHECKSUM, cache_root, checksum

ROOT = "vendor/llama.cpp"
TESTS = (
    "test-backend-ops",
    "test-llama-archs",
    "test-recurrent-state-rollback",
    "test-save-load-state",
    "test-thread-safety",
)


def is_wanted(file: PurePosixPath) -> bool:
    """Whether a file, named from llama.cpp's root, is a part of the tests."""
    if file.parts[0] == "tests":
        return str(file) in {f"tests/{test}.cpp" for test in TESTS}
    if file.parts[0] == "src":
        return str(file.parent) == "src" and file.suffix == ".h"
    folders = {"common", "vendor/nlohmann"}
    return str(file.parent) in folders and file.suffix in {".h", ".hpp", ".cpp"}


def is_intact(folder: Path) -> bool:
    """Whether all files are those that were put there."""
    noted = folder / CHECKSUM
    if not noted.is_file():
        return False
    lines = [line.split(maxsplit=1) for line in noted.read_text().splitlines()]
    return bool(lines) and all(
        (folder / name).is_file() and checksum(folder / name) == digest for digest, name in lines
    )


def unpack(package: Path, folder: Path) -> None:
    """Takes what is wanted out of the source package, and notes its checksums."""
    root = PurePosixPath(package.name.removesuffix(".tar.gz")) / ROOT
    lines = []
    with tarfile.open(package) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if not member.isfile() or not path.is_relative_to(root):
                continue
            name = path.relative_to(root)
            content = archive.extractfile(member) if is_wanted(name) else None
            if content is None:
                continue
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())
            lines.append(f"{checksum(file)} {name}\n")
    for test in TESTS:
        if not (folder / "tests" / f"{test}.cpp").is_file():
            raise FileNotFoundError(f"{package.name} has no test {test}")
    (folder / CHECKSUM).write_text("".join(lines))


def fetch(version: str, folder: Path) -> None:
    """Fetches the source package, and moves what is wanted of it into place when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching llama.cpp's tests, once: {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch]
        command += ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={version}"]
        # pip's messages must not mix with the path on stdout.
        subprocess.run(command, check=True, stdout=sys.stderr)
        (package,) = Path(scratch).glob("*.tar.gz")
        unpacked = Path(scratch) / folder.name
        unpack(package, unpacked)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch or find llama.cpp's own tests")
    parser.add_argument("version")
    version = parser.parse_args().version
    folder = cache_root() / "sources" / f"llama_cpp_python-{version}"
    if not is_intact(folder):
        fetch(version, folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
