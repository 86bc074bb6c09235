"""The C API's objects in Python: Target, Drafter and Session, one class per handle.

Handles are freed by close(), by `with` or with the object, whichever comes first, and sessions
before their targets. What is left when the interpreter ends is the operating system's to free: a
daemon thread may still use it. One thread at a time per target and its session: a second one gets
an error.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from pydflash2._exit import native_call
from pydflash2._ffi import Uncopyable, address, check, ffi, library
from pydflash2._llama_cpp import Sampler, Vocab, context_length
from pydflash2._options import (
    CacheType,
    DraftLength,
    SessionOptions,
    require_int,
)
from pydflash2._raw import (
    MAX_DRAFT,
    defaults,
    draft_length,
    drafter_options,
    encode_path,
    session_options,
    sized,
    target_options,
)
from pydflash2.errors import InvalidArgumentError

MAX_STEP_TOKENS = MAX_DRAFT + 1
"""Most tokens one step returns: drafted ones and the bonus token."""


def _free(free: Any, pointer: Any, needs: tuple[object, ...]) -> None:
    free(pointer)


class _Handle(Uncopyable):
    """Owns one C object. Subclasses set it with _own and read it with _pointer."""

    _finalizer: weakref.finalize[..., Any]

    def _own(self, free_name: str, pointer: Any, *needs: object) -> None:
        """needs: what must still be there when the object is freed. The finalizer keeps it alive,
        because the garbage collector frees the members of a cycle in any order."""
        self._raw = pointer
        free = getattr(library(), free_name)
        self._finalizer = weakref.finalize(self, _free, free, pointer, needs)
        self._finalizer.atexit = False

    @property
    def _pointer(self) -> Any:
        if self.is_closed:
            raise InvalidArgumentError(f"this {type(self).__name__} is closed: make a new one")
        return self._raw

    @property
    def is_closed(self) -> bool:
        """Whether close() has freed the object."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Frees the object. Again is a no-op."""
        self._finalizer()


class Target(_Handle):
    """The model whose text is wanted, with one llama.cpp context.

    path       a GGUF file
    n_ctx      context length in tokens; llama.cpp rounds it up to a multiple of 256, and the
               attribute n_ctx says what came of it
    n_batch    most tokens decoded at once in a prefill
    n_threads  None: one per fast core, within the CPU quota
    kernels    False: compute with llama.cpp's own kernels only
    max_bytes  most memory it may take, as plan() counts it; None: what the machine and the
               process's control groups have available
    cache_type_k, cache_type_v
               of the K/V cache: "f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1" or
               "iq4_nl", as llama.cpp's options of these names
    swa_full   False: layers with a sliding window keep the keys and values of about window +
               n_batch tokens only, not of the whole context: less memory, but no way back past
               them (RewindError)

    Raises ModelFileError, ModelFormatError, UnsupportedError, OutOfMemoryError (before the model is
    loaded, with what it needs and what would help), InvalidArgumentError (also: the model cannot
    have a cache of these types).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_threads: int | None = None,
        kernels: bool = True,
        max_bytes: int | None = None,
        cache_type_k: CacheType = "f16",
        cache_type_v: CacheType = "f16",
        swa_full: bool = True,
    ) -> None:
        options = target_options(
            n_ctx, n_batch, n_threads, kernels, max_bytes, cache_type_k, cache_type_v, swa_full
        )
        out = ffi.new("df2_target **")
        encoded = encode_path(path)
        with native_call():
            check(library().df2_target_open(out, encoded, options))
        self.n_batch = n_batch
        self._adopt(out[0])

    @classmethod
    def attach(cls, context: int, *, n_batch: int = 512, owner: object = None) -> Target:
        """Wraps a context that another owner made, given as the address of its llama_context.

        owner: kept alive as long as the target or a session on it.
        Borrowed: it must outlive the target, and while a session exists nothing else may decode
        with it. Raises InvalidArgumentError; the context is then as before.
        """
        out = ffi.new("df2_target **")
        pointer = ffi.cast("struct llama_context *", context)
        check(library().df2_target_attach(out, pointer, ffi.NULL))
        self = cls.__new__(cls)
        self.n_batch = n_batch
        self._adopt(out[0], owner)
        return self

    def _adopt(self, pointer: Any, *needs: object) -> None:
        self._own("df2_target_free", pointer, *needs)
        context = address(library().df2_target_context(pointer))
        self.vocab = Vocab(context, pointer)
        self.n_ctx = context_length(context)
        self._context = context
        self._lock = threading.Lock()
        self._session: weakref.ref[Session] | None = None

    @property
    def context_address(self) -> int:
        """Address of the llama_context, for llama-cpp-python's low-level functions. Borrowed: valid
        until close(). While there is a session its memory may be neither changed nor read: a
        recurrent state is complete only when the session is closed."""
        _ = self._pointer  # refuse when closed
        return self._context

    def close(self) -> None:
        """Closes the session on this target, if there is one, and frees the model. Again is a
        no-op."""
        session = self._session() if self._session else None
        if session is not None:
            session.close()
        super().close()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter file says. Sizes in elements unless the name ends in _bytes."""

    version: int  # 1: DFlash, 2: DFlash2
    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    block_size: int
    conv_kernel_size: int  # this and the next three: 0 for version 1
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    window: int  # tokens; 0: every layer attends to everything
    tap_layers: tuple[int, ...]  # as layer inputs: k is the output of target layer k - 1, from 1
    mask_token: int
    is_causal: bool
    weights_bytes: int  # memory-mapped
    packed_bytes: int  # packed for the kernels; their part of the file is not kept in memory


class Drafter(_Handle):
    """A drafter file. Immutable: may be shared by sessions on any threads, and closed before them.

    version: require DFlash 1 or 2; None takes either. kernels: as Target's.
    Raises ModelFileError, ModelFormatError (MismatchError: another version), UnsupportedError,
    OutOfMemoryError, InvalidArgumentError.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, version: int | None = None, kernels: bool = True
    ) -> None:
        options = drafter_options(version, kernels)
        out = ffi.new("df2_drafter **")
        encoded = encode_path(path)
        with native_call():
            check(library().df2_drafter_load(out, encoded, options))
        self._own("df2_drafter_free", out[0])

    @property
    def info(self) -> DrafterInfo:
        """What the file says."""
        raw = sized("df2_drafter_info")
        check(library().df2_drafter_info_get(self._pointer, raw))
        skipped = {"tap_layers", "is_causal"}
        plain = {
            name: getattr(raw, name)
            for name in DrafterInfo.__dataclass_fields__
            if name not in skipped
        }
        return DrafterInfo(
            **plain,
            tap_layers=tuple(raw.tap_layers[0 : raw.n_taps]),
            is_causal=bool(raw.is_causal),
        )

    def __enter__(self) -> Drafter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Step:
    """What one cycle generated. The first n_accepted of the tokens were drafted."""

    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    is_end: bool  # the last token ends the generation


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A draft as the drafter sees it; k candidates per position. Arrays are copies.

    tokens      [n_draft], the selector's path
    candidates  [n_draft, k], token ids of the target, best logit first
    scores      [n_draft, k], logit plus transition from the token before
    q           [n_draft, k], softmax of the scores over the temperature, or over 1 at 0
    tokens_q    [n_draft], q of the path's tokens
    hidden      [n_draft + 1, n_embd], after the final norm, anchor first
    logits      [n_draft, rows of the head], after multiplier and softcap. With a drafter of a
                reduced vocabulary a column is a row of its own head, not a token id
    """

    tokens: npt.NDArray[np.int32]
    candidates: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    q: npt.NDArray[np.float32]
    tokens_q: npt.NDArray[np.float32]
    hidden: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and times since the session began or was last reset. Times are wall time in
    microseconds."""

    prefill_us: int
    draft_us: int
    verify_us: int
    accept_us: int
    other_us: int
    n_prefill: int  # prompt tokens decoded
    n_cycles: int  # verify passes, with or without a draft
    n_generated: int
    n_drafted: int
    n_accepted: int
    drafted_at: tuple[int, ...]  # [64] how often position i of a draft was drafted
    accepted_at: tuple[int, ...]  # [64] and accepted
    drafter_cache_bytes: int
    drafter_compute_bytes: int
    drafter_weights_bytes: int  # memory-mapped
    drafter_packed_bytes: int  # weights packed for the kernels
    target_packed_bytes: int
    target_copied_bytes: int  # of those, a second copy of embeddings that are also the head
    n_replayed: int  # tokens decoded again, where a recurrent target could not drop others alone
    target_rewind_bytes: int  # copies of a recurrent state to go back to
    n_restored: int  # times its memory went back to a checkpoint, or to nothing for want of one
    n_recomputed: int  # tokens decoded again after a rewind that did
    n_checkpoints: int  # held now
    checkpoint_bytes: int

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify pass, the bonus token included; 1.0 without drafting, 0.0 before the
        first pass."""
        return (self.n_accepted + self.n_cycles) / self.n_cycles if self.n_cycles else 0.0

    @property
    def generation_us(self) -> int:
        """Wall time of everything but prompts."""
        return self.draft_us + self.verify_us + self.accept_us + self.other_us


class Session(_Handle):
    """One sequence of tokens on one target, empty at first.

    drafter     None decodes token by token and reads no hidden states: plain decoding
    ignore_end  go on after an end-of-generation token
    options     n_draft, window, cache_type, n_threads_draft, profiles, checkpoint_bytes: see
                SessionOptions

    Raises MismatchError, UnsupportedError, InvalidArgumentError (also: the target has a session
    already), OutOfMemoryError. The target may then be used on.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        ignore_end: bool = False,
        **options: Unpack[SessionOptions],
    ) -> None:
        self._max_draft = drafter.info.block_size - 1 if drafter is not None else 0
        raw, _profiles = session_options(options, self._max_draft)
        raw.ignore_end = ignore_end
        out = ffi.new("df2_session **")
        pointer = drafter._pointer if drafter is not None else ffi.NULL
        with native_call():
            check(library().df2_session_create(out, target._pointer, pointer, raw))
        self._own("df2_session_free", out[0], target)
        self.target = target
        target._session = weakref.ref(self)
        self._tokens: list[int] = []
        self._sampler: Sampler | None = None
        self._buffer = ffi.new("int32_t[]", MAX_STEP_TOKENS)
        self._result = ffi.new("df2_step_result *")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        lock = self.target._lock
        with native_call():
            if not lock.acquire(blocking=False):
                raise InvalidArgumentError("another thread is using this session: one at a time")
            try:
                yield
            finally:
                lock.release()

    def _call(self, name: str, *args: Any) -> None:
        with self._exclusive():
            check(getattr(library(), name)(self._pointer, *args))

    def _change(self, name: str, *args: Any, appends: Any = ()) -> None:
        """A call that changes the sequence; appends: indexable, the ids it may append.

        The token list follows the library's count even if the call did its work and
        KeyboardInterrupt came before its result was seen, which is when Ctrl-C usually arrives.
        """
        with self._exclusive():
            pointer = self._pointer
            try:
                check(getattr(library(), name)(pointer, *args))
            finally:
                n_tokens = library().df2_session_n_tokens(pointer)
                del self._tokens[n_tokens:]
                self._tokens.extend(appends[0 : n_tokens - len(self._tokens)])

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sequence: prompt and generated tokens."""
        return tuple(self._tokens)

    @property
    def n_tokens(self) -> int:
        """Length of the sequence."""
        return len(self._tokens)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the sequence and decodes them. May be called again at any time.

        Raises InvalidArgumentError and ContextFullError (the session is as before), BackendError
        (as before, or poisoned).
        """
        ids = token_ids(tokens)
        self._change("df2_session_prefill", ffi.new("int32_t[]", ids), len(ids), appends=ids)

    def step(self, max_tokens: int = MAX_STEP_TOKENS) -> Step:
        """Generates the next tokens, at most max_tokens, and appends them to the sequence.

        Right after a prefill this is one token; otherwise one cycle: draft, verify, accept.
        Raises InvalidArgumentError (also: nothing prefilled), ContextFullError (no room for one
        token), BackendError, PoisonedError. The session is then as before, or poisoned.
        """
        require_int("max_tokens", max_tokens, 1, None)
        capacity = min(max_tokens, MAX_STEP_TOKENS)
        result = self._result
        self._change("df2_session_step", self._buffer, capacity, result, appends=self._buffer)
        tokens = tuple(self._buffer[0 : result.n_tokens])
        return Step(tokens, result.n_drafted, result.n_accepted, bool(result.is_end))

    def rewind(self, n_tokens: int) -> None:
        """Cuts the sequence to its first n_tokens; generation then continues from the last kept
        one.

        A target with a recurrent state goes back to the last checkpoint before that place, or to
        nothing; the next prefill or step decodes the tokens between again. The sampler is not
        rewound. Raises InvalidArgumentError, or RewindError if the target's memory cannot go back
        that far and there are no checkpoints (checkpoint_bytes 0): rewind to 0 and prefill again.
        On failure nothing changed.
        """
        require_int("n_tokens", n_tokens, 0, self.n_tokens)
        self._change("df2_session_rewind", n_tokens)

    def set_sampler(self, sampler: Sampler | None) -> None:
        """Chooses how tokens are picked; None (the default) takes the most probable one. The
        session keeps the sampler alive until it is replaced or the session ends."""
        if sampler is not None and sampler.is_closed:
            raise InvalidArgumentError("this Sampler is closed: make a new one")
        pointer = sampler.address if sampler is not None else 0
        self._call("df2_session_set_sampler", ffi.cast("struct llama_sampler *", pointer))
        self._sampler = sampler

    def set_n_draft(self, n_draft: DraftLength) -> None:
        """Changes n_draft from the next step on. InvalidArgumentError if out of range; nothing
        changes then."""
        self._call("df2_session_set_n_draft", draft_length(n_draft, self._max_draft))

    def draft(
        self,
        n_draft: int,
        *,
        temperature: float = 0.0,
        uniforms: npt.ArrayLike | None = None,
    ) -> Draft:
        """Drafts n_draft tokens (1 .. block_size - 1) and verifies nothing: for inspection. The
        sequence is unchanged.

        temperature: 0 takes each position's best score; above, tokens are drawn from
        softmax(scores / temperature) with `uniforms`, [n_draft] numbers in [0, 1).
        The last token must come from a step or a rewind, not from a prefill (InvalidArgumentError).
        """
        require_int("n_draft", n_draft, 1, None)
        options = defaults("df2_draft_options")
        options.n_draft = n_draft
        numbers = _numbers("uniforms", () if uniforms is None else uniforms)
        options.temperature = _numbers("temperature", (temperature,))[0]
        if numbers.shape != ((n_draft,) if options.temperature > 0 else (0,)):
            raise InvalidArgumentError(
                "uniforms must be n_draft numbers in [0, 1) if the temperature is above 0, and are "
                f"not used at 0; got shape {numbers.shape} for n_draft {n_draft}"
            )
        options.uniforms = ffi.from_buffer("float[]", numbers)
        raw = sized("df2_draft")
        self._call("df2_session_draft", options, raw)
        n, n_candidates = raw.n_draft, raw.n_candidates
        return Draft(
            tokens=_copy(raw.tokens, (n,), np.int32),
            candidates=_copy(raw.candidates, (n, n_candidates), np.int32),
            scores=_copy(raw.scores, (n, n_candidates), np.float32),
            q=_copy(raw.q, (n, n_candidates), np.float32),
            tokens_q=_copy(raw.tokens_q, (n,), np.float32),
            hidden=_copy(raw.hidden, (n + 1, raw.n_embd), np.float32),
            logits=_copy(raw.logits, (n, raw.n_vocab), np.float32),
        )

    def save_profile(self) -> None:
        """Keeps what n_draft="auto" has learnt, for sessions to come; close() does so too. For
        programs that may end without it. Never fails."""
        with self._exclusive():
            library().df2_session_save_profile(self._pointer)

    def stats(self) -> Stats:
        """Counters and times since the session began or the last reset_stats()."""
        raw = sized("df2_stats")
        self._call("df2_session_stats_get", raw)
        arrays = {"drafted_at", "accepted_at"}
        fields: dict[str, Any] = {
            name: tuple(getattr(raw, name)) if name in arrays else getattr(raw, name)
            for name in Stats.__dataclass_fields__
        }
        return Stats(**fields)

    def reset_stats(self) -> None:
        """Zeroes the counters and times; what the draft-length choice has learnt stays."""
        with self._exclusive():
            library().df2_session_stats_reset(self._pointer)

    def close(self) -> None:
        """Frees the session; the target may have another one then. Again is a no-op."""
        with self._exclusive():
            super().close()
        self._sampler = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    try:
        return np.ascontiguousarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"{name} must be numbers, not {values!r}") from None


def token_ids(tokens: Sequence[int]) -> list[int]:
    """tokens as a list of ints that fit int32; whether the vocabulary has them is checked by the
    library."""
    if isinstance(tokens, (str, bytes)):
        raise InvalidArgumentError(f"expected a sequence of token ids, not {type(tokens).__name__}")
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError as error:
        raise InvalidArgumentError(f"expected a sequence of token ids: {error}") from error
    if not all(0 <= token < 2**31 for token in ids):
        raise InvalidArgumentError("a token id is out of range")
    return ids


def _copy(pointer: Any, shape: tuple[int, ...], dtype: type[Any]) -> npt.NDArray[Any]:
    """A borrowed C array as a NumPy array of its own."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    borrowed = np.frombuffer(ffi.buffer(pointer, n_bytes), dtype=dtype)
    copied: npt.NDArray[Any] = borrowed.reshape(shape).copy()
    return copied
