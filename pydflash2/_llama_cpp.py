"""What this package uses of llama.cpp itself, through llama-cpp-python's low-level bindings:
vocabulary, samplers, log.

Pointers cross between the two bindings as integers. Nothing here owns a model or a context.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp

from pydflash2._ffi import Uncopyable, address, check, ffi, library
from pydflash2._options import encode_text
from pydflash2.errors import InvalidArgumentError, OutOfMemoryError

PENALTY_WINDOW = 64
"""Tokens a repeat penalty looks back on, as llama.cpp's own tools do."""


class Vocab(Uncopyable):
    """The tokenizer of the model behind a context. Borrowed: valid while the context is. Any
    thread."""

    def __init__(self, context: int, target: Any) -> None:
        """target: the df2_target of that context."""
        self._target = target
        self._model = llama_cpp.llama_get_model(context)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of text. add_special: begin (and end) as the model's own tokenizer would, e.g.
        with BOS. parse_special: text such as "<|im_end|>" becomes that control token.

        Raises InvalidArgumentError if the vocabulary has no tokens for a character."""
        data = encode_text("the text", text)
        capacity = len(data) + 2
        n_tokens = ffi.new("int32_t *")
        while True:
            buffer = ffi.new("int32_t[]", capacity)
            options = (add_special, parse_special, buffer, capacity, n_tokens)
            check(library().df2_target_tokenize(self._target, data, len(data), *options))
            if n_tokens[0] <= capacity:
                return list(buffer[0 : n_tokens[0]])
            capacity = n_tokens[0]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; b"" for control tokens. May end in the middle of a
        character."""
        if token not in self._pieces:
            size = 64
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if n < 0:
                size = -n
                buffer = ctypes.create_string_buffer(size)
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            self._pieces[token] = buffer.raw[:n]
        return self._pieces[token]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence; control tokens vanish, broken UTF-8 becomes U+FFFD."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        capacity = 8 * len(tokens) + 32
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            n = llama_cpp.llama_detokenize(
                self._vocab, ids, len(tokens), buffer, capacity, False, False
            )
            if n >= 0:
                return buffer.raw[:n].decode("utf-8", "replace")
            capacity = -n

    def text(self, token: int) -> str:
        """A token as the vocabulary spells it, e.g. "<|im_end|>"; "" for an id of -1 (absent)."""
        if token < 0:
            return ""
        spelled: bytes = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return spelled.decode("utf-8", "replace")

    @property
    def bos(self) -> int:
        """Beginning-of-sequence token id, -1 if the model has none."""
        return int(llama_cpp.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        """End-of-sequence token id, -1 if the model has none."""
        return int(llama_cpp.llama_vocab_eos(self._vocab))

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja), or None."""
        template: bytes | None = llama_cpp.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None


def context_length(context: int) -> int:
    """Tokens one sequence may hold."""
    return int(llama_cpp.llama_n_ctx_seq(context))


class Sampler(Uncopyable):
    """A llama.cpp sampler chain. Owned: freed by close() or with the object. One thread at a
    time."""

    def __init__(
        self,
        vocab: Vocab,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repeat_penalty: float,
        seed: int,
    ) -> None:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if not chain:
            raise OutOfMemoryError("no memory for a sampler")
        self._chain = chain
        self.address = ctypes.cast(chain, ctypes.c_void_p).value
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, chain)
        self._free.atexit = False  # as _session's handles
        if repeat_penalty != 1.0:
            self._add(
                llama_cpp.llama_sampler_init_penalties(
                    vocab.n_tokens, PENALTY_WINDOW, repeat_penalty, 0.0, 0.0
                )
            )
        if temperature == 0.0:
            self._add(llama_cpp.llama_sampler_init_greedy())
            return
        self._add(llama_cpp.llama_sampler_init_top_k(top_k))
        self._add(llama_cpp.llama_sampler_init_top_p(top_p, 1))
        self._add(llama_cpp.llama_sampler_init_min_p(min_p, 1))
        self._add(llama_cpp.llama_sampler_init_temp(temperature))
        self._add(llama_cpp.llama_sampler_init_dist(seed))

    def _add(self, link: Any) -> None:
        # The chain owns its links: they are freed with it.
        llama_cpp.llama_sampler_chain_add(self._chain, link)

    def accept(self, tokens: Sequence[int]) -> None:
        """Shows the chain tokens it did not pick, e.g. a prompt's, for its penalties."""
        if self.is_closed:
            raise InvalidArgumentError("this sampler is closed")
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._chain, token)

    @property
    def is_closed(self) -> bool:
        """Whether close() has freed the chain."""
        return not self._free.alive

    def close(self) -> None:
        """Frees the chain. No session may use it any more. Again is a no-op."""
        self._free()


@functools.cache
def _log_quiet() -> Any:
    """Not a Python function: Ctrl-C while a model loads would be raised, and lost, in it."""
    return llama_cpp.llama_log_callback(address(ffi.addressof(library(), "df2_log_ignore")))


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _log_stderr(level: int, text: bytes, payload: Any) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))


_log_is_chosen = False


def quiet_log_by_default() -> None:
    """Switches llama.cpp's log off unless set_log has been called."""
    if not _log_is_chosen:
        llama_cpp.llama_log_set(_log_quiet(), ctypes.c_void_p(0))


def set_log(*, verbose: bool) -> None:
    """Sends llama.cpp's own log to stderr or nowhere. The setting is the process's, not a
    model's."""
    global _log_is_chosen
    _log_is_chosen = True
    llama_cpp.llama_log_set(_log_stderr if verbose else _log_quiet(), ctypes.c_void_p(0))


def system_info() -> str:
    """llama.cpp's line about the processor features it uses."""
    info: bytes = llama_cpp.llama_print_system_info()
    return info.decode("utf-8", "replace")
