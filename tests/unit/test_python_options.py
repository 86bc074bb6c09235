"""GenerateSettings are checked before anything is decoded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from pydflash2 import InvalidArgumentError
from pydflash2._options import (
    GenerateOptions,
    GenerateSettings,
    SessionOptions,
    SessionSettings,
)


def test_documented_defaults() -> None:
    options = GenerateSettings()
    documented = GenerateOptions.__doc__ or ""
    for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed"):
        line = next(line for line in documented.splitlines() if line.strip().startswith(name))
        start = documented.index(line)
        end = documented.index("(", start)
        assert documented[end + 1 :].split(")")[0] == str(getattr(options, name)), name
    assert options.stop_strings == ()
    assert options.is_argmax


def test_the_two_lists_of_options_agree() -> None:
    assert set(GenerateOptions.__annotations__) == set(GenerateSettings.__dataclass_fields__)
    assert set(SessionOptions.__annotations__) == set(SessionSettings.__dataclass_fields__)


def test_the_session_options_are_documented_where_they_are_taken() -> None:
    """With their defaults in SessionOptions, and by name wherever `**options` hides them."""
    documented = " ".join((SessionOptions.__doc__ or "").split())
    for name, field in SessionSettings.__dataclass_fields__.items():
        text = documented[documented.index(f" {name} ") :].partition("(the default)")[0]
        quoted = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
        assert text.rstrip().endswith(quoted), name
        assert name in (pydflash2.load.__doc__ or ""), name
        assert name in (pydflash2.Session.__doc__ or ""), name


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
        ("seed", -2),
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
        GenerateSettings(**{name: value})


def test_one_stop_string_may_stand_alone() -> None:
    assert GenerateSettings(stop="##").stop_strings == ("##",)
    assert GenerateSettings(stop=["a", "b"]).stop_strings == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window", 0),
        ("window", 1.5),
        ("cache_type", "q6_0"),
        ("cache_type", ["f16"]),
        ("n_threads_draft", 0),
        ("n_threads_draft", True),
        ("checkpoint_bytes", -1),
        ("checkpoint_bytes", 1.5),
        ("checkpoint_bytes", 2**63),
        ("profiles", 3),
        ("profiles", ""),
        ("profiles", None),
    ],
)
def test_bad_session_options_are_refused_before_a_file_is_read(
    name: str, value: Any, tmp_path: Path
) -> None:
    options: Any = {name: value}
    with pytest.raises(InvalidArgumentError, match=name):
        pydflash2.load(tmp_path / "missing.gguf", **options)


def test_unknown_session_options_are_refused_before_a_file_is_read(tmp_path: Path) -> None:
    options: Any = {"n_drafts": 3}
    with pytest.raises(TypeError, match="n_drafts"):
        pydflash2.load(tmp_path / "missing.gguf", **options)
