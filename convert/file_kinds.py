"""What a file is when it is not what it should be, and what a path leads to when it is no file.

Sentences for messages: they begin after the path and a colon, and end with the remedy.
"""

from __future__ import annotations

import glob
import re
import string
from pathlib import Path

HEAD_BYTES = 512
"""As much of a file's beginning as `wrong_kind` looks at."""

_AGAIN = "download it again"
_BEFORE_GGUF = (
    "of a format from before GGUF: get a GGUF file, or convert the original weights again"
)
_PAGE = (
    "a web page, not the file: use the address that downloads it (on Hugging Face /resolve/ "
    "instead of /blob/)"
)
_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself: run `git lfs pull` where it was cloned, or "
        "download the file",
    ),
    (b"GGUF", "a GGUF file"),
    (b"\x1f\x8b", "compressed with gzip: unpack it first (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first (unzstd)"),
    (b"\xfd7zXZ\0", "compressed with xz: unpack it first (unxz)"),
    (b"BZh", "compressed with bzip2: unpack it first (bunzip2)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (
        b"PK\3\4",
        "a ZIP archive, as PyTorch's .bin and .pt files are: unpack it, or save the weights as "
        "safetensors",
    ),
    *((magic, _BEFORE_GGUF) for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")),
)
_PAGE_STARTS = (b"<!doctype html", b"<html", b"<?xml", b"<head", b"<script")
_TEXT = frozenset(string.printable.encode())
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".aria2", ".tmp")
_HUB_DOWNLOADS = ".cache/huggingface/download"
_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(:[\w.-]+)?")
_ADDRESS = re.compile(r"\w+:/")  # of which a path leaves one slash


def wrong_kind(head: bytes, size: int) -> str | None:
    """What a file of `size` bytes that begins with `head` is, or None if that cannot be told."""
    if size == 0:
        return f"empty: {_AGAIN}"
    for prefix, what in _PREFIXES:
        if head.startswith(prefix):
            return what
    if head.lstrip().lower().startswith(_PAGE_STARTS):
        return _PAGE
    if _is_safetensors(head, size):
        return "a safetensors file: `pydflash2 convert` takes the folder that it is in"
    if not any(head):
        return f"nothing but zeros at its beginning: an unfinished download; {_AGAIN}"
    if all(byte in _TEXT for byte in head):
        shown = " ".join(head[:60].decode("ascii").split())
        return f"text ({shown!r}), perhaps what a server answered instead of the file: {_AGAIN}"
    return None


def _is_safetensors(head: bytes, size: int) -> bool:
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size - 8


def unfinished(path: Path) -> str:
    """A remark if names say that this file's download has not finished; else empty."""
    if path.suffix.lower() in _UNFINISHED:
        return f" (its name ends in {path.suffix}: the download has not finished)"
    for suffix in _UNFINISHED:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            return f" ({beside.name} beside it says that the download has not finished)"
    if any((path.parent / _HUB_DOWNLOADS).glob(f"{glob.escape(path.name)}*.incomplete")):
        return f" (an .incomplete file in {_HUB_DOWNLOADS} says that the download has not finished)"
    return ""


def not_a_file(path: Path) -> str | None:
    """Why there is no file at `path`; None if there is one (which may not be readable)."""
    if path.is_dir():
        found = sorted(file.name for file in path.glob("*.gguf"))
        names = f" ({', '.join(found[:3])})" if found else ""
        return f"a folder: give the GGUF file's own path{names}"
    if not path.exists():
        return _missing(path)
    return None if path.is_file() else _NOT_REGULAR


def not_a_folder(path: Path) -> str | None:
    """Why there is no model folder at `path`; None if there is a folder."""
    if path.is_dir():
        revisions = sorted(path.glob("snapshots/*/config.json"))
        if (path / "config.json").exists():
            return None
        if revisions:
            return f"the hub's cache of a model: give the folder in it, {revisions[0].parent}"
        found = sorted(file.name for file in path.glob("*.gguf"))
        return f"a folder of GGUF files: give the path of one ({found[0]})" if found else None
    if not path.exists():
        return _missing(path)
    if not path.is_file():
        return _NOT_REGULAR
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if is_gguf:
        return "a GGUF file, which needs no conversion (`pydflash2 inspect` tells what it is)"
    return "a file: give the folder that it is in, with config.json and the weights"


_NOT_REGULAR = "not a regular file but a pipe or device: give the path of a file"


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {path.readlink()}, which is not there: {_AGAIN}"
    if _ADDRESS.match(str(path)):
        return "an address: nothing is downloaded here; download it and give its path"
    name = _HUB_NAME.fullmatch(str(path))
    if name and path.suffix != ".gguf" and not path.parent.exists():
        return (
            "no such file or folder. If it is a name on a model hub: nothing is downloaded here; "
            f"download it (`hf download {name[1]}`) and give its path"
        )
    if str(path).startswith("~"):
        return "no such file or folder: only shells know what ~ stands for; give the whole path"
    return f"no such file or folder{unfinished(path)}"
