"""Types of command-line arguments."""

from __future__ import annotations

import argparse


def lengths(text: str) -> list[int]:
    """Parses draft lengths: `1-7` or `1,3,5`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError("draft lengths begin at 1")
    return list(dict.fromkeys(found))


def positive(text: str) -> int:
    """A number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def not_negative(text: str) -> int:
    """A number from 0 on."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def numbers(text: str) -> list[int]:
    """Numbers from 1 on: `1,2,8`. One that stands twice counts once."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))
