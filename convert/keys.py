"""Bookkeeping over `config.json`.

Each key is consumed, ignored for a stated reason, or an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConversionError

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What became of one configuration key.

    `gguf_key` is the key written from it, empty if none; `consumed` is False for ignored keys.
    """

    key: str
    value: str
    gguf_key: str
    note: str
    consumed: bool


class ConfigKeys:
    """A `config.json` whose sections are flattened to dotted names, with a record of every use.

    `take_*` return the first of several names that is present and not null; the others, if present,
    are recorded as overridden. A missing key raises `ConversionError` unless `required=False`; no
    default is ever made up.
    """

    def __init__(self, raw: Mapping[str, Any], sections: Iterable[str], path: Path) -> None:
        self.path = path
        self._sections = frozenset(sections)
        self._flat: dict[str, Any] = {}
        self._uses: dict[str, KeyUse] = {}
        self._flatten(raw, "")

    def _flatten(self, raw: Mapping[str, Any], prefix: str) -> None:
        for name, value in raw.items():
            if name in self._sections and isinstance(value, dict):
                self._flatten(value, f"{prefix}{name}.")
            else:
                self._flat[prefix + name] = value

    def error(self, what: str) -> ConversionError:
        """A `ConversionError` that names the file."""
        return ConversionError(f"{self.path}: {what}")

    def names(self) -> list[str]:
        """All keys, flattened."""
        return list(self._flat)

    def peek(self, key: str) -> Any:
        """The value of a flattened key, or None, without recording a use."""
        return self._flat.get(key)

    def record(self, key: str, gguf_key: str, note: str = "", *, consumed: bool = True) -> None:
        """Note what became of a key."""
        text = str(self._flat[key])
        shown = text if len(text) <= 60 else text[:57] + "..."
        self._uses[key] = KeyUse(key, shown, gguf_key, note, consumed)

    def ignore(self, key: str, reason: str) -> None:
        """Record a key, if present, as having no effect on the output."""
        if key in self._flat and key not in self._uses:
            self.record(key, "", reason, consumed=False)

    def _take(self, names: tuple[str, ...], gguf_key: str, note: str, required: bool) -> Any:
        found = [name for name in names if self._flat.get(name) is not None]
        for name in names:
            if name in self._flat and name not in found:
                self.ignore(name, "null")
        if not found:
            if required:
                raise self.error(
                    f"required key {' or '.join(map(repr, names))} is missing. Add it to "
                    "config.json "
                    "with the value the drafter was trained with."
                )
            return None
        self.record(found[0], gguf_key, note)
        for name in found[1:]:
            self.ignore(name, f"{found[0]} is used")
        return self._flat[found[0]]

    def take_any(
        self, *names: str, gguf_key: str = "", note: str = "", required: bool = True
    ) -> Any:
        """The value, unchecked."""
        return self._take(names, gguf_key, note, required)

    def take_count(
        self,
        *names: str,
        gguf_key: str = "",
        note: str = "",
        required: bool = True,
        minimum: int = 1,
    ) -> int | None:
        """An integer of at least `minimum` that fits GGUF's 32 bits."""
        value = self._take(names, gguf_key, note, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{names[0]} is {value!r}, not an integer")
        if not minimum <= value <= _MAX_COUNT:
            raise self.error(f"{names[0]} is {value}, expected {minimum} to {_MAX_COUNT}")
        return value

    def need_count(self, *names: str, gguf_key: str = "", note: str = "", minimum: int = 1) -> int:
        """As `take_count`, never None."""
        value = self.take_count(*names, gguf_key=gguf_key, note=note, minimum=minimum)
        assert value is not None
        return value

    def take_number(
        self, *names: str, gguf_key: str = "", note: str = "", required: bool = True
    ) -> float | None:
        """A finite number that fits 32-bit floating point."""
        value = self._take(names, gguf_key, note, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{names[0]} is {value!r}, not a number")
        # In this order: an int may be too large for isfinite.
        if abs(value) > 3e38 or not math.isfinite(value):
            raise self.error(f"{names[0]} is {value!r:.40}, not a finite 32-bit number")
        return float(value)

    def need_number(self, *names: str, gguf_key: str = "", note: str = "") -> float:
        """As `take_number`, never None."""
        value = self.take_number(*names, gguf_key=gguf_key, note=note)
        assert value is not None
        return value

    def take_bool(
        self, *names: str, gguf_key: str = "", note: str = "", required: bool = False
    ) -> bool | None:
        """True or false, or None when absent."""
        value = self._take(names, gguf_key, note, required)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{names[0]} is {value!r}, not true or false")
        return value

    def take_list(
        self,
        *names: str,
        item: type,
        gguf_key: str = "",
        note: str = "",
        required: bool = True,
    ) -> tuple[Any, ...] | None:
        """A list whose elements all have the type `item`."""
        value = self._take(names, gguf_key, note, required)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 4096:
            raise self.error(f"{names[0]} is not a list (or far too long)")
        if any(type(element) is not item for element in value):
            raise self.error(f"{names[0]} is {str(value)[:80]}, expected a list of {item.__name__}")
        return tuple(value)

    def require(self, key: str, allowed: tuple[Any, ...], why: str) -> None:
        """If the key is present, insist on one of the values that the drafter graph implements."""
        if key not in self._flat:
            return
        value = self._flat[key]
        if value is not None and not any(value is a or value == a for a in allowed):
            raise self.error(
                f"{key} is {value!r}: {why}. Only {' or '.join(map(repr, allowed))} can be "
                "converted."
            )
        self.record(key, "", "checked")

    def finish(self, ignored_by_user: Iterable[str]) -> tuple[KeyUse, ...]:
        """Every key with its use, in file order; an unknown key raises `ConversionError`."""
        for key in ignored_by_user:
            self.ignore(key, "ignored on request")
        unknown = [key for key in self._flat if key not in self._uses]
        if unknown:
            raise self.error(
                f"unknown key {', '.join(map(repr, unknown[:5]))}: it might change what the "
                "drafter "
                "computes. If it does not, pass --ignore-key; otherwise this drafter needs a newer "
                "pydflash2."
            )
        return tuple(self._uses[key] for key in self._flat)
