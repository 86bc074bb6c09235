"""A model through llama-cpp-python's low-level interface, without a context."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.tools.errors import ToolError


class LlamaFile:
    """An opened model file: its vocabulary and, unless ``vocab_only``, its weights.

    The low-level interface, because the high-level one copies every row of logits. llama.cpp's log
    goes to ``log``. Never closed: a process opens one.
    """

    def __init__(self, path: str, *, vocab_only: bool = False) -> None:
        import llama_cpp.llama_cpp as lib

        self.lib = lib
        self.log: list[str] = []
        # Kept on self: llama.cpp holds on to the pointer for the life of the process.
        self._callback = lib.llama_log_callback(self._on_log)
        lib.llama_log_set(self._callback, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise ToolError(
                f"llama.cpp cannot load {path}: {self.last_error()}",
                "name a GGUF that llama.cpp runs; delete it if the bench wrote it",
            )
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))

    def _on_log(self, level: int, text: bytes, payload: Any) -> None:
        self.log.append(text.decode(errors="replace").strip())

    def last_error(self) -> str:
        """What llama.cpp said last of an error."""
        return next((line for line in reversed(self.log) if "error" in line), "no reason given")

    def open_context(self, params: Any) -> Any:
        """A context on the model, for the life of the process."""
        context = self.lib.llama_init_from_model(self.model, params)
        if not context:
            raise ToolError(
                f"llama.cpp cannot create a context of {params.n_ctx} tokens: {self.last_error()}",
                "ask for less context, or free memory",
            )
        return context

    def description(self) -> str:
        """Architecture, size and type, in llama.cpp's words."""
        room = ctypes.create_string_buffer(256)
        self.lib.llama_model_desc(self.model, room, len(room))
        return room.value.decode(errors="replace")

    def tokenize(self, text: str, *, is_prompt: bool) -> list[int]:
        """Token ids of a text. In a prompt special tokens are recognised, and it gets the token
        that begins texts, if the model has one."""
        raw = text.encode()
        room = (self.lib.llama_token * (len(raw) + 8))()
        n = self.lib.llama_tokenize(
            self.vocab, raw, len(raw), room, len(room), is_prompt, is_prompt
        )
        if n < 0:
            raise ToolError("llama.cpp cannot tokenize the text", "use a model with a tokenizer")
        return list(room[:n])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special tokens spelled out as llama.cpp's tools print them."""
        room = ctypes.create_string_buffer(256)
        n = self.lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, True)
        return room.raw[: max(n, 0)]
