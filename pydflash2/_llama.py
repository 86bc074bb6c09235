"""Text in, text out: the class most programs use."""

from __future__ import annotations

import contextlib
import inspect
import os
import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
from typing_extensions import Unpack

from pydflash2._chat import ChatTemplate, Message
from pydflash2._ffi import Uncopyable, logger
from pydflash2._generation import Chunk, FinishReason, generate_chunks
from pydflash2._llama_cpp import PENALTY_WINDOW, Sampler, set_log
from pydflash2._options import (
    RANDOM_SEED,
    CacheType,
    DraftLength,
    GenerateOptions,
    GenerateSettings,
    SessionOptions,
    SessionSettings,
    new_seed,
)
from pydflash2._plan import plan
from pydflash2._raw import NO_LIMIT
from pydflash2._session import Drafter, Session, Stats, Target, token_ids
from pydflash2.errors import (
    BackendError,
    ContextFullError,
    InvalidArgumentError,
    OutOfMemoryError,
    RewindError,
)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished text. tokens holds the ids behind it: an end-of-generation token included, a stop
    string's not."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats


class Llama(Uncopyable):
    """A target, and a drafter that makes it faster. Made by load() or attach(). One thread at a
    time.

    Calls share one sequence: the beginning of a prompt that the previous call already decoded is
    not decoded again. After an exception the object stays usable, with whatever part of the
    sequence is intact.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        **options: Unpack[SessionOptions],
    ) -> None:
        """Takes target over, and closes it with itself; drafter stays the caller's. options: see
        SessionOptions. Raises what Session raises."""
        self._target = target
        self._drafter = drafter
        self._session_options: SessionOptions = options
        self._is_drafting = drafter is not None
        self._template: ChatTemplate | None = None
        self._is_streaming = False
        self._streams: weakref.WeakSet[Generator[Chunk, None, None]] = weakref.WeakSet()
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(target.close)
        self._session = self._open_session()

    def _open_session(self) -> Session:
        if self._is_drafting or self._drafter is None:
            return Session(self._target, self._drafter, **self._session_options)
        plain: SessionOptions = {**self._session_options, "n_draft": 0}
        return Session(self._target, None, **plain)

    # -- Properties --------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The low-level session. Steps and rewinds done there are seen by the next call here."""
        self._require_open()
        if self._session.is_closed:
            self._session = self._open_session()
        return self._session

    @property
    def target(self) -> Target:
        """The target; its `vocab` is the tokenizer."""
        return self._target

    @property
    def drafter(self) -> Drafter | None:
        """The drafter, in use or not."""
        return self._drafter

    @property
    def n_ctx(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._target.n_ctx

    def stats(self) -> Stats:
        """Counters and times of the last generating call."""
        return self.session.stats()

    # -- Tokens ------------------------------------------------------------------------------------

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of text. add_special: with the BOS token, if the model wants one.
        parse_special: spelled-out control tokens such as "<|im_end|>" become those tokens."""
        self._require_open()
        return self._target.vocab.tokenize(
            text, add_special=add_special, parse_special=parse_special
        )

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens; control tokens have none."""
        self._require_open()
        ids = token_ids(tokens)
        if any(token >= self._target.vocab.n_tokens for token in ids):
            raise InvalidArgumentError("a token id is outside the target's vocabulary")
        return self._target.vocab.detokenize(ids)

    def format_chat(
        self, messages: Sequence[Message], *, template_variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a conversation in the target's chat template, up to where the next answer
        begins.

        messages: mappings with the keys "role" and "content". The template decides about BOS.
        template_variables: what else the template reads, by name: {"enable_thinking": False},
        {"tools": [...]}, a date; also in place of what it is given anyway, such as
        add_generation_prompt (True).
        Raises UnsupportedError if the target's file has no usable template, InvalidArgumentError if
        the template refuses the messages or fails in any other way.
        """
        self._require_open()
        if self._template is None:
            self._template = ChatTemplate(self._target.vocab)
        variables = {} if template_variables is None else template_variables
        text = self._template.render(messages, variables)
        return self.tokenize(text, add_special=False)

    # -- Generation --------------------------------------------------------------------------------

    def stream(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> Generator[Chunk, None, None]:
        """Generates text after a prompt, a Chunk per verify.

        prompt: text, tokenized with the model's special tokens, or token ids. options: see
        GenerateOptions. The generator may be closed early: the sequence then ends with the last
        chunk handed out. While it is neither closed nor exhausted, other generating calls raise
        InvalidArgumentError; see close_stream(). Raises InvalidArgumentError at once for bad
        options; while iterating ContextFullError if the prompt does not fit, BackendError. A
        context that fills up later is a finish_reason, not an error.
        """
        resolved = GenerateSettings(**options)
        chunks = self._run(self._prompt_ids(prompt), resolved)
        self._streams.add(chunks)
        return chunks

    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> Completion:
        """Generates text after a prompt and returns it whole. Otherwise as stream()."""
        return self._complete(self.stream(prompt, **options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generator[Chunk, None, None]:
        """Generates the next answer in a conversation. messages and template_variables as in
        format_chat(), otherwise as stream()."""
        unknown = options.keys() - GenerateOptions.__annotations__
        if unknown:
            raise TypeError(
                f"unknown option {min(unknown)!r}: variables of the chat template go into "
                "template_variables, a mapping"
            )
        prompt = self.format_chat(messages, template_variables=template_variables)
        return self.stream(prompt, **options)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Generates the next answer in a conversation and returns it whole. Otherwise as
        stream_chat()."""
        return self._complete(
            self.stream_chat(messages, template_variables=template_variables, **options)
        )

    def close_stream(self) -> None:
        """Closes a stream that was begun and not finished, if there is one, whoever holds it: what
        an exception has left open lives as long as its traceback. No-op otherwise.
        InvalidArgumentError if the stream is just generating, as seen from a callback or another
        thread."""
        for chunks in list(self._streams):
            state = inspect.getgeneratorstate(chunks)
            if state == inspect.GEN_RUNNING:
                raise InvalidArgumentError("the stream is generating: it cannot be closed now")
            if state == inspect.GEN_SUSPENDED:
                chunks.close()

    def set_n_draft(self, n_draft: DraftLength) -> None:
        """Tokens drafted per cycle, from now on. InvalidArgumentError if out of range; nothing
        changes then."""
        self.session.set_n_draft(n_draft)
        self._session_options["n_draft"] = n_draft

    def set_drafting(self, enabled: bool) -> None:
        """Switches the drafter on or off. Off is plain decoding: no hidden states are read and no
        draft is made.

        The sequence is dropped: the next call decodes its prompt from the start.
        """
        self._require_idle()
        if enabled and self._drafter is None:
            raise InvalidArgumentError("there is no drafter: load the target with one")
        self._is_drafting = enabled
        self._session.close()

    def close(self) -> None:
        """Frees session and model (an attached context stays its owner's). Again is a no-op."""
        self._session.close()
        self._cleanup.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- How it is done ----------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._target.is_closed:
            raise InvalidArgumentError("this Llama is closed: load it again")

    def _require_idle(self) -> None:
        self._require_open()
        if self._is_streaming:
            raise InvalidArgumentError(
                "a stream of this model is still open: exhaust it or close() it first, or call "
                "close_stream()"
            )

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        self._require_idle()
        ids = self.tokenize(prompt) if isinstance(prompt, str) else token_ids(prompt)
        if not ids:
            raise InvalidArgumentError("the prompt is empty")
        return ids

    def _complete(self, chunks: Generator[Chunk, None, None]) -> Completion:
        parts: list[str] = []
        tokens: list[int] = []
        finish_reason: FinishReason | None = None
        with contextlib.closing(chunks):  # also by Ctrl-C between two of them
            for chunk in chunks:
                parts.append(chunk.text)
                tokens.extend(chunk.tokens)
                finish_reason = chunk.finish_reason
        assert finish_reason is not None  # the last chunk always says why
        return Completion("".join(parts), tuple(tokens), finish_reason, self.stats())

    def _run(self, prompt: list[int], options: GenerateSettings) -> Generator[Chunk, None, None]:
        self._require_idle()
        session = self.session
        try:
            self._is_streaming = True
            session.reset_stats()
            session.set_sampler(self._sampler(prompt, options))
            self._prefill(session, prompt, options)
            yield from generate_chunks(session, options)
            session.save_profile()
        except BackendError:
            # Poisoned or not, an empty session is the safe state: the next call makes one.
            session.close()
            raise
        finally:
            self._is_streaming = False

    def _sampler(self, prompt: list[int], options: GenerateSettings) -> Sampler | None:
        if options.is_argmax:
            return None
        sampler = Sampler(
            self._target.vocab,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repeat_penalty=options.repeat_penalty,
            seed=new_seed() if options.seed == RANDOM_SEED else options.seed,
        )
        sampler.accept([t for t in prompt[-PENALTY_WINDOW:] if t < self._target.vocab.n_tokens])
        return sampler

    def _prefill(self, session: Session, prompt: list[int], options: GenerateSettings) -> None:
        """Makes prompt the session's sequence, decoding only what is new, a batch at a time so that
        Ctrl-C and callbacks get their turn."""
        if len(prompt) > self.n_ctx:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.n_ctx}: "
                "shorten the prompt or load the target with a larger n_ctx"
            )
        n_done = _n_common(session.tokens, prompt)
        if n_done < session.n_tokens:
            try:
                session.rewind(n_done)
            except RewindError:
                session.rewind(0)
                n_done = 0
        while n_done < len(prompt):
            batch = prompt[n_done : n_done + self._target.n_batch]
            session.prefill(batch)
            n_done += len(batch)
            if options.on_prefill is not None:
                options.on_prefill(n_done, len(prompt))


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def load(
    target: str | os.PathLike[str],
    drafter: str | os.PathLike[str] | Drafter | None = None,
    *,
    n_ctx: int = 4096,
    n_batch: int = 512,
    n_threads: int | None = None,
    version: int | None = None,
    kernels: bool = True,
    max_bytes: int | None = None,
    cache_type_k: CacheType = "f16",
    cache_type_v: CacheType = "f16",
    swa_full: bool = True,
    verbose: bool = False,
    **options: Unpack[SessionOptions],
) -> Llama:
    """Loads a target and, unless drafter is None, a drafter for it.

    target      GGUF file of the model whose text is wanted
    drafter     GGUF file of its drafter, or a Drafter that is shared and stays yours
    n_ctx       context length in tokens; llama.cpp rounds it up to a multiple of 256
    n_batch     most tokens decoded at once in a prefill
    n_threads   None: one per fast core, within the CPU quota
    version     require a drafter of DFlash 1 or 2
    kernels     False: compute with llama.cpp's own kernels only
    max_bytes   most memory both may take, as plan() counts it; None: what the machine and the
                process's control groups have available
    cache_type_k, cache_type_v
                of the target's K/V cache: see Target
    swa_full    False: save memory with a model that has a sliding window; see Target
    verbose     let llama.cpp log to stderr; this setting is the process's
    options     how to draft: n_draft, window, cache_type, n_threads_draft, profiles,
                checkpoint_bytes; see SessionOptions

    Raises ModelFileError, ModelFormatError (MismatchError: the two do not belong together),
    OutOfMemoryError (before anything is loaded, with what is needed and what would help),
    InvalidArgumentError; BackendError if the native library is not usable.
    """
    SessionSettings(**options)  # what is wrong with them is said before a model is loaded
    set_log(verbose=verbose)
    given: dict[str, Any] = {
        "n_ctx": n_ctx,
        "n_batch": n_batch,
        "n_threads": n_threads,
        "kernels": kernels,
        "max_bytes": max_bytes,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
        "swa_full": swa_full,
    }
    if drafter is not None and not isinstance(drafter, Drafter):
        given |= _within_memory(target, drafter, version, given, options)
    with contextlib.ExitStack() as undo:
        # The drafter first: it is the smaller file, and as likely to be the wrong one.
        shared = _take_drafter(drafter, version, kernels, undo)
        opened = undo.enter_context(Target(target, **given))
        made = Llama(opened, shared, **options)
        made._cleanup.push(undo.pop_all())
        return made


def _within_memory(
    target: str | os.PathLike[str],
    drafter: str | os.PathLike[str],
    version: int | None,
    given: dict[str, Any],
    options: SessionOptions,
) -> dict[str, Any]:
    """How a target is opened so that there is room for its drafter too: which of Target's arguments
    are other ones. OutOfMemoryError if there is none."""
    any_length: SessionOptions = {**options, "n_draft": "auto"}
    try:
        planned = plan(target, drafter, version=version, **given, **any_length)
    except OutOfMemoryError:
        return {}  # opening says better what there is no memory for, or does with less
    if planned.problem:
        raise OutOfMemoryError(planned.problem)
    if planned.note:
        logger.warning("'%s': %s", os.fspath(target), planned.note)
    return {"kernels": planned.kernels, "max_bytes": NO_LIMIT}


def attach(
    llama: llama_cpp.Llama,
    drafter: str | os.PathLike[str] | Drafter,
    *,
    version: int | None = None,
    kernels: bool = True,
    **options: Unpack[SessionOptions],
) -> Llama:
    """Drafts for a model that llama-cpp-python has loaded, without loading it again. Options as in
    load(), but kernels is only about the drafter: see enable_kernels() for llama's own weights.

    llama's context is borrowed: do not use or close llama before the result is closed. Its sequence
    is dropped, then and now (with a warning if there is one: images cannot be taken over). Works
    for every architecture without a recurrent state that load() works for, as long as the kernels
    are in use; without them only some record their hidden states. UnsupportedError says what is in
    the way. Otherwise raises what load() raises.
    """
    if not isinstance(llama, llama_cpp.Llama):
        raise InvalidArgumentError(f"expected a llama_cpp.Llama, not {type(llama).__name__}")
    if llama.ctx is None:
        raise InvalidArgumentError("the llama_cpp.Llama is closed")
    SessionSettings(**options)
    with contextlib.ExitStack() as undo:
        shared = _take_drafter(drafter, version, kernels, undo)
        # llama-cpp-python remembers which tokens its context holds; what it remembers is about to
        # be wrong.
        llama.reset()  # type: ignore[no-untyped-call]
        undo.callback(llama.reset)
        opened = undo.enter_context(Target.attach(llama.ctx, n_batch=llama.n_batch, owner=llama))
        made = Llama(opened, shared, **options)
        made._cleanup.push(undo.pop_all())
        return made


def _take_drafter(
    drafter: str | os.PathLike[str] | Drafter | None,
    version: int | None,
    kernels: bool,
    undo: contextlib.ExitStack,
) -> Drafter | None:
    """The drafter asked for; one loaded here is closed with undo."""
    if drafter is None:
        if version is not None:
            raise InvalidArgumentError("version is about the drafter, and there is none")
        return None
    if not isinstance(drafter, Drafter):
        return undo.enter_context(Drafter(drafter, version=version, kernels=kernels))
    if version not in (None, drafter.info.version):
        raise InvalidArgumentError(f"the drafter is DFlash {drafter.info.version}, not {version}")
    return drafter
