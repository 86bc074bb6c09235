"""Options and results as the library takes them."""

from __future__ import annotations

import os
from typing import Any

from pydflash2._ffi import check, ffi, library
from pydflash2._kernels import kernels_option
from pydflash2._llama_cpp import quiet_log_by_default
from pydflash2._options import (
    CacheType,
    DraftLength,
    SessionOptions,
    SessionSettings,
    cache_type_number,
    require_int,
)
from pydflash2._profiles import profiles_folder
from pydflash2.errors import InvalidArgumentError

MAX_DRAFT = 64
"""DF2_MAX_DRAFT."""

NO_LIMIT = 2**64 - 1
"""A max_bytes with which nothing is checked."""


def target_options(
    n_ctx: int,
    n_batch: int,
    n_threads: int | None,
    kernels: bool,
    max_bytes: int | None,
    cache_type_k: CacheType,
    cache_type_v: CacheType,
    swa_full: bool,
) -> Any:
    """What Target's arguments are in C, checked."""
    require_int("n_ctx", n_ctx, 1, None)
    require_int("n_batch", n_batch, 1, None)
    if n_threads is not None:
        require_int("n_threads", n_threads, 1, None)
    if max_bytes is not None:
        require_int("max_bytes", max_bytes, 1, NO_LIMIT)
    if not isinstance(swa_full, bool):
        raise InvalidArgumentError(f"swa_full must be True or False, not {swa_full!r}")
    quiet_log_by_default()
    raw = defaults("df2_target_options")
    raw.n_ctx, raw.n_batch, raw.n_threads = n_ctx, n_batch, n_threads or 0
    raw.kernels = kernels_option(kernels)
    raw.max_bytes = max_bytes or 0
    raw.cache_type_k = cache_type_number("cache_type_k", cache_type_k)
    raw.cache_type_v = cache_type_number("cache_type_v", cache_type_v)
    raw.swa_full = int(swa_full)
    return raw


def drafter_options(version: int | None, kernels: bool) -> Any:
    """What Drafter's arguments are in C, checked."""
    if version not in (None, 1, 2):
        raise InvalidArgumentError(f"version must be 1, 2 or None, not {version!r}")
    raw = defaults("df2_drafter_options")
    raw.version = version or 0
    raw.kernels = kernels_option(kernels)
    return raw


def session_options(options: SessionOptions, max_draft: int | None) -> tuple[Any, Any]:
    """What Session's options are in C, checked, and what must live as long. max_draft: None leaves
    the bounds of n_draft to the library."""
    settings = SessionSettings(**options)
    raw = defaults("df2_session_options")
    raw.n_draft = draft_length(settings.n_draft, MAX_DRAFT if max_draft is None else max_draft)
    raw.window = settings.window or 0
    raw.cache_type = cache_type_number("cache_type", settings.cache_type)
    raw.n_threads_draft = settings.n_threads_draft or 0
    raw.checkpoint_bytes = (
        settings.checkpoint_bytes if settings.checkpoint_bytes is not None else -1
    )
    folder = profiles_folder(settings.profiles)
    profiles = ffi.new("char[]", encode_path(folder)) if folder is not None else ffi.NULL
    raw.profiles = profiles
    return raw, profiles


def defaults(struct: str) -> Any:
    """A C option struct holding the library's defaults."""
    options = ffi.new(f"{struct} *")
    check(getattr(library(), f"{struct}_init")(options, ffi.sizeof(struct)))
    return options


def sized(struct: str) -> Any:
    """A zeroed C result struct with struct_size set."""
    raw = ffi.new(f"{struct} *")
    raw.struct_size = ffi.sizeof(struct)
    return raw


def encode_path(path: str | os.PathLike[str]) -> bytes:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a path is not valid Unicode text: {error}") from error
    if b"\0" in encoded:
        raise InvalidArgumentError("a path cannot hold a NUL character")
    return encoded


def draft_length(n_draft: DraftLength, most: int) -> int:
    """n_draft as the library takes it. most: what the drafter can do, 0 without one."""
    if n_draft == "auto":
        return -1
    if isinstance(n_draft, bool) or not isinstance(n_draft, int) or not 0 <= n_draft <= most:
        allowed = f"an integer of 0 .. {most}" if most else "0 where there is no drafter"
        raise InvalidArgumentError(f'n_draft must be "auto" or {allowed}, not {n_draft!r}')
    return n_draft
