"""Options are checked before anything is decoded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pydflash2 import InvalidArgumentError
from pydflash2._options import GenerateOptions, Options


def test_documented_defaults() -> None:
    options = Options()
    documented = GenerateOptions.__doc__ or ""
    for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"):
        line = next(line for line in documented.splitlines() if line.strip().startswith(name))
        start = documented.index(line)
        end = documented.index("(", start)
        assert documented[end + 1 :].split(")")[0] == str(getattr(options, name)), name
    assert options.stop_strings == ()
    assert options.is_argmax


def test_the_two_lists_of_options_agree() -> None:
    assert set(GenerateOptions.__annotations__) == set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("top_k", -1),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repeat_penalty", 0.0),
        ("seed", -1),
        ("seed", 2**32),
        ("stop", ("",)),
        ("stop", ""),
        ("stop", (b"x",)),
        ("stop", 5),
        ("stop", "\ud800"),
    ],
)
def test_bad_values(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        Options(**{name: value})


def test_one_stop_string_may_stand_alone() -> None:
    assert Options(stop="##").stop_strings == ("##",)
    assert Options(stop=["a", "b"]).stop_strings == ("a", "b")
