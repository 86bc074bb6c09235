"""Models that llama-gguf-split has split: their parts name each other by number only."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import FormatError
from .gguf_read import GgufFile

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MERGE = "or merge the parts into one file (llama-gguf-split --merge)"


def _numbers(file: GgufFile) -> tuple[int, int]:
    """Which part this is, from 0, and of how many; (0, 1) for a file that is whole."""
    number, count = file.get("split.no", 0), file.get("split.count", 1)
    if type(number) is not int or type(count) is not int or count < 2:
        return 0, 1
    if not 0 <= number < count:
        raise FormatError(f"{file.path}: part {number + 1} of {count}: damaged; download it again")
    return number, count


def _name(path: Path, number: int, count: int) -> Path | None:
    """Where another part of the model that `path` is a part of lies; None if names do not tell."""
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        return None
    return path.with_name(f"{match[1]}-{number + 1:05}-of-{count:05}.gguf")


def refuse_later_part(file: GgufFile) -> None:
    """Raises FormatError for a part that is not the first: only that one describes the model."""
    number, count = _numbers(file)
    if number == 0:
        return
    first = _name(file.path, 0, count)
    named = f", {first.name}" if first else f", whose name ends in -00001-of-{count:05}.gguf"
    raise FormatError(
        f"{file.path}: part {number + 1} of {count} of a split model: give the first part{named}"
    )


def part_paths(file: GgufFile) -> list[Path]:
    """The files of a model, `file` the first of them. Raises FormatError when one is missing."""
    _, count = _numbers(file)
    if count == 1:
        return [file.path]
    parts = [_name(file.path, i, count) for i in range(count)]
    paths = [part for part in parts if part is not None]
    if len(paths) != count:
        raise FormatError(
            f"{file.path}: one of {count} parts of a model, but its name does not end in "
            f"-00001-of-{count:05}.gguf, which would name the others: restore the names, {_MERGE}"
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise FormatError(
            f"{file.path}: {', '.join(missing[:3])} missing ({len(missing)} of {count} parts): "
            f"download the rest into the same folder, {_MERGE}"
        )
    return paths
