"""Where results go, and how they get there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

RESULTS = Path("build") / "bench"


def now() -> str:
    """The time that results are dated with."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def stamp() -> str:
    """The time as file names have it."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


def result_folder(given: Path | None, prefix: str = "") -> Path:
    """The folder asked for, or one for this run."""
    folder = given or RESULTS / f"{prefix}{stamp()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes files whole: what an interrupted run leaves can be read."""
    for name, text in texts.items():
        partial = folder / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
