"""Where what the draft-length choice has learnt is kept between processes."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "DF2_PROFILES"
"""Environment: a folder for profiles, or "off"."""


def profiles_folder(wanted: str | os.PathLike[str] | bool) -> str | os.PathLike[str] | None:
    """The folder that a session keeps its profile in, or None for none. True: what the environment
    says, or else the user's cache, if there is one."""
    if not isinstance(wanted, bool):
        return wanted
    asked = os.environ.get(VARIABLE, "")
    if not wanted or asked == "off":
        return None
    if asked:
        return asked
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home
        return None
    return cache / "pydflash2" / "profiles"
