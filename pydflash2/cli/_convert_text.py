"""How often the target's tokens occur in text files: `convert --vocab-text`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydflash2.errors import InvalidArgumentError

# Large enough for few calls, small enough that a file's size does not show in the memory used.
PIECE_CHARACTERS = 1 << 18


def count_tokens(target: Path, files: list[Path]) -> Counter[int]:
    """Token id -> occurrences. Spelled-out control tokens count as the text they are.

    Raises InvalidArgumentError for files that do not exist, are not UTF-8 text or hold none,
    OSError, and what Target raises.
    """
    import pydflash2

    if target.is_dir():
        raise InvalidArgumentError(
            f"counting text needs the target's tokenizer, and {target} is a folder: "
            "give --target its GGUF file"
        )
    for path in files:
        _check_file(path)
    counts: Counter[int] = Counter()
    # Nothing is decoded: a small context without packed weights opens soonest.
    with pydflash2.Target(target, n_ctx=32, n_batch=32, kernels=False) as opened:
        for piece in itertools.chain.from_iterable(map(_pieces, files)):
            counts.update(opened.vocab.tokenize(piece, add_special=False, parse_special=False))
    if not counts:
        raise InvalidArgumentError(f"{', '.join(map(str, files))}: there is no text to count")
    return counts


def _check_file(path: Path) -> None:
    """Refuses what is no file, before the target is opened."""
    if path.is_dir():
        raise InvalidArgumentError(
            f"--vocab-text {path}: a folder: name the text files in it ({path / '*.txt'})"
        )
    if not path.exists():
        # Shells hand on a pattern that matches nothing as it is.
        what = "no file matches this pattern" if set("*?[") & set(str(path)) else "no such file"
        raise InvalidArgumentError(
            f"--vocab-text {path}: {what}: give the paths of existing text files"
        )


def _pieces(path: Path) -> Iterator[str]:
    """The file's text, cut at ends of lines, so that only line breaks can be counted apart."""
    lines: list[str] = []
    n_characters = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                lines.append(line)
                n_characters += len(line)
                if n_characters >= PIECE_CHARACTERS:
                    yield "".join(lines)
                    lines, n_characters = [], 0
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{path}: not UTF-8 text ({error.reason}): convert it, or leave it out"
        ) from error
    if lines:
        yield "".join(lines)
