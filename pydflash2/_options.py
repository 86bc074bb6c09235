"""How sessions and generations are asked for: one list of options each, for all calls that take
them, checked in one place."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from pydflash2.errors import InvalidArgumentError

SEED_LIMIT = 2**32 - 1  # the last 32-bit number makes llama.cpp choose a seed itself
RANDOM_SEED = -1

_MOST_BYTES = 2**63 - 1


def new_seed() -> int:
    """A seed that nobody has asked for."""
    return secrets.randbelow(SEED_LIMIT)


DraftLength = int | Literal["auto"]
CacheType = Literal["f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
# as df2_cache_type numbers them
CACHE_TYPES: tuple[str, ...] = get_args(CacheType)


class SessionOptions(TypedDict, total=False):
    """Keyword options of load(), attach(), Llama and Session. All may be left out.

    n_draft          tokens drafted per cycle, 0 .. block_size - 1; "auto" (the default): chosen
                     while running. Fewer where a recurrent target cannot drop as many: 8 with
                     inputs kept, 7 with snapshots
    window           most context tokens a full-attention drafter layer attends to; None (the
                     default): 2048
    cache_type       of the drafter's K/V cache: "f16" (the default), "f32", "bf16", "q8_0", "q4_0",
                     "q4_1", "q5_0", "q5_1" or "iq4_nl"
    n_threads_draft  threads that draft, at most the target's; None (the default): as many
    profiles         a folder for what n_draft="auto" learns about a pair on this machine, so that
                     later processes begin with it; True (the default): ~/.cache/pydflash2/profiles
                     or where the environment variable DF2_PROFILES says, "off" for nowhere; False:
                     nowhere. A folder that cannot be written is as if there were none
    checkpoint_bytes
                     most memory for copies of a target's recurrent state that a rewind goes back
                     to; 0: none, nor does a rewind decode all anew; None (the default): 512 MiB, at
                     most an eighth of what is available
    """

    n_draft: DraftLength
    window: int | None
    cache_type: CacheType
    n_threads_draft: int | None
    profiles: str | os.PathLike[str] | bool
    checkpoint_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """SessionOptions with the defaults filled in and every value checked, but for n_draft, whose
    bounds are the drafter's."""

    n_draft: DraftLength = "auto"
    window: int | None = None
    cache_type: CacheType = "f16"
    n_threads_draft: int | None = None
    profiles: str | os.PathLike[str] | bool = True
    checkpoint_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            require_int("window", self.window, 1, None)
        cache_type_number("cache_type", self.cache_type)
        if self.n_threads_draft is not None:
            require_int("n_threads_draft", self.n_threads_draft, 1, None)
        if not isinstance(self.profiles, (str, os.PathLike, bool)) or self.profiles == "":
            raise InvalidArgumentError(
                f"profiles must be a folder, True or False, not {self.profiles!r}"
            )
        if self.checkpoint_bytes is not None:
            require_int("checkpoint_bytes", self.checkpoint_bytes, 0, _MOST_BYTES)


class GenerateOptions(TypedDict, total=False):
    """Keyword options of Llama.generate, stream, chat and stream_chat. All may be left out.

    max_tokens      most tokens to generate, an end-of-generation token included (256)
    stop            text at which to stop: a string or several; it is not part of the result, and
                    may be or hold a control token such as "<|im_end|>" ()
    temperature     0.0 takes the most probable token; above, tokens are drawn (0.0)
    top_k           draw among the k most probable tokens only; 0 for all (40)
    top_p           draw among the most probable tokens that together reach this probability (0.95)
    min_p           drop tokens less probable than this share of the most probable one (0.05)
    repeat_penalty  above 1.0, divides the logits of the last 64 tokens (1.0)
    seed            of the random numbers, 0 .. 2**32 - 2: same seed, same text; -1: another one
                    for each call (-1)
    on_prefill      called as on_prefill(n_done, n_total) after every batch of the prompt; an
                    exception it raises ends the call and reaches the caller unchanged (None)
    """

    max_tokens: int
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int
    on_prefill: Callable[[int, int], Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """GenerateOptions with the defaults filled in and every value checked."""

    max_tokens: int = 256
    stop: str | Sequence[str] = ()
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int = RANDOM_SEED
    on_prefill: Callable[[int, int], Any] | None = None

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 1, None)
        _require_number("temperature", self.temperature, 0.0, math.inf)
        require_int("top_k", self.top_k, 0, None)
        _require_number("top_p", self.top_p, 0.0, 1.0)
        _require_number("min_p", self.min_p, 0.0, 1.0)
        _require_number("repeat_penalty", self.repeat_penalty, 0.0, math.inf)
        if self.repeat_penalty == 0.0:
            raise InvalidArgumentError("repeat_penalty must be above 0; 1.0 switches it off")
        require_int("seed", self.seed, RANDOM_SEED, SEED_LIMIT - 1)
        if not isinstance(self.stop, (str, Sequence)):
            raise InvalidArgumentError(f"stop must be a string or several, not {self.stop!r}")
        for text in self.stop_strings:
            if not encode_text("stop", text):
                raise InvalidArgumentError("stop must not hold an empty string")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def is_argmax(self) -> bool:
        """Whether the plain most probable token is wanted, which needs no sampler chain."""
        return self.temperature == 0.0 and self.repeat_penalty == 1.0


def require_int(name: str, value: object, low: int, high: int | None) -> None:
    """Raises InvalidArgumentError unless value is an int of low .. high (None: no upper bound but
    int32's)."""
    limit = 2**31 - 1 if high is None else high
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limit:
        is_too_large = isinstance(value, int) and value > limit
        bounds = f"at least {low}" if high is None and not is_too_large else f"{low} .. {limit}"
        raise InvalidArgumentError(f"{name} must be an integer of {bounds}, not {value!r}")


def cache_type_number(name: str, value: object) -> int:
    """The df2_cache_type of that name; InvalidArgumentError if there is none."""
    if not isinstance(value, str) or value not in CACHE_TYPES:
        names = ", ".join(f'"{known}"' for known in CACHE_TYPES)
        raise InvalidArgumentError(f"{name} must be one of {names}, not {value!r}")
    return CACHE_TYPES.index(value)


def encode_text(name: str, text: object) -> bytes:
    """text as UTF-8. InvalidArgumentError if it is not a str, or holds half a surrogate pair."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name} must be text, not {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{name} is not valid Unicode text: {error}") from error


def _require_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"{low:g} .. {high:g}"
        raise InvalidArgumentError(f"{name} must be a number of {bounds}, not {value!r}")
