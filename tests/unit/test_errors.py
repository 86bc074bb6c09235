"""Exceptions are this package's and Python's own at once."""

from __future__ import annotations

import pytest

import pydflash2
from pydflash2 import errors


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("ModelFormatError", ValueError),
        ("MismatchError", ValueError),
        ("UnsupportedError", ValueError),
        ("ModelFileError", OSError),
        ("ContextFullError", RuntimeError),
        ("RewindError", RuntimeError),
        ("BackendError", RuntimeError),
        ("PoisonedError", RuntimeError),
        ("OutOfMemoryError", MemoryError),
    ],
)
def test_hierarchy(name: str, builtin: type[Exception]) -> None:
    exception = getattr(pydflash2, name)
    assert issubclass(exception, (errors.Dflash2Error, builtin))
    assert issubclass(exception, errors.Dflash2Error)
    assert issubclass(exception, builtin)
    assert str(exception("what and why")) == "what and why"


def test_all_of_them_are_public() -> None:
    assert set(errors.__all__) <= set(pydflash2.__all__)


def test_every_public_name_resolves() -> None:
    for name in pydflash2.__all__:
        assert getattr(pydflash2, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pydflash2.nonsense
