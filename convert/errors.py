"""The converter's exceptions.

All of them are `ValueError`s whose text names the problem and the remedy.
"""

from __future__ import annotations


class ConversionError(ValueError):
    """The checkpoint cannot become a drafter file; no output was left behind."""


class FormatError(ConversionError):
    """A file is not what its name says: truncated, damaged or hostile."""
