"""Where made files are kept, and how two of one name are told apart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """Where made models are kept: several gigabytes; safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "pydflash2" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sha256(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
