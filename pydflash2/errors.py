"""Exceptions. Every failure of the library is a `Dflash2Error` and also one of Python's own
exception types.

The message names the problem and the remedy. What state a failure leaves behind is said where the
call is documented; as a rule everything is as before, except after `PoisonedError`.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "ContextFullError",
    "Dflash2Error",
    "InvalidArgumentError",
    "MismatchError",
    "ModelFileError",
    "ModelFormatError",
    "OutOfMemoryError",
    "PoisonedError",
    "RewindError",
    "UnsupportedError",
]


class Dflash2Error(Exception):
    """Base of all exceptions this package raises on purpose, except the TypeError for copying or
    pickling an object that stands for native memory."""


class InvalidArgumentError(Dflash2Error, ValueError):
    """An argument is out of range, or the object is closed or in use. Nothing changed."""


class ModelFileError(Dflash2Error, OSError):
    """A file cannot be opened or read."""


class ModelFormatError(Dflash2Error, ValueError):
    """A file is not what it claims to be, or is damaged."""


class MismatchError(ModelFormatError):
    """This drafter does not fit this target."""


class UnsupportedError(ModelFormatError):
    """A valid model that this build cannot use."""


class ContextFullError(Dflash2Error, RuntimeError):
    """The target's context has no room left. Nothing changed: rewind, or open the target with a
    larger n_ctx."""


class RewindError(Dflash2Error, RuntimeError):
    """The target's memory cannot go back that far. Nothing changed: rewind to 0 and prefill
    again."""


class BackendError(Dflash2Error, RuntimeError):
    """The native library is missing or does not fit, or llama.cpp failed to compute."""


class PoisonedError(BackendError):
    """An earlier failure left the session unusable: close it and make a new one."""


class OutOfMemoryError(Dflash2Error, MemoryError):
    """Memory for a model, a context or a cache could not be had."""
