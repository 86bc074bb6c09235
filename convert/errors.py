"""The converter's exceptions.

All of them are `ValueError`s whose text names the problem and the remedy.
"""

from __future__ import annotations


class ConversionError(ValueError):
    """The checkpoint cannot become a drafter file; no output was left behind."""


class FormatError(ConversionError):
    """A file is not what its name says: truncated, damaged or hostile."""


def refuse_git_lfs_pointer(path: object, data: bytes) -> None:
    """Raises FormatError if a file that begins with data only says which one Git LFS has not
    fetched. The format: git-lfs, docs/spec.md."""
    if data.startswith(b"version https://git-lfs.github.com/spec/"):
        raise FormatError(
            f"{path}: a Git LFS pointer, not the file itself: run `git lfs pull` where it was "
            "cloned, or download the file"
        )
