"""Runs one system on one prompt in a process of its own, and prints what happened as JSON.

The benchmark starts this file by path, not as a module of the checkout, so that ``import
pydflash2`` finds the installed package with its compiled library and not the source folder; that is
also why it imports nothing from its neighbours. The request comes in on stdin, the reply is the
last line of stdout. Loading the model and warming it up happen before any clock starts.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MICRO = 1e6


def main() -> int:
    """Reads the request, runs it, prints the reply."""
    request: dict[str, Any] = json.load(sys.stdin)
    tasks: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "inspect": inspect,
        "reference": reference,
        "plain": plain,
        "pydflash2": pydflash2,
    }
    try:
        reply = tasks[request["task"]](request)
    except ImportError as error:
        reply = {"error": f"{error.name or 'a package'} cannot be imported: {error}"}
    print(json.dumps(reply), flush=True)
    return 1 if "error" in reply else 0


class Llama:
    """A target loaded with llama.cpp through llama-cpp-python's low-level interface, and a context.

    The low-level interface, because the high-level one copies every row of logits and would make
    plain decoding look slower than llama.cpp is.
    """

    def __init__(self, path: str, *, n_ctx: int, n_threads: int, vocab_only: bool = False) -> None:
        import llama_cpp.llama_cpp as lib

        self.lib = lib
        # Kept on self: llama.cpp holds on to the pointer for the life of the process.
        self._log = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        model_params.vocab_only = vocab_only
        self.model = lib.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self.vocab))
        self.context: Any = None
        if vocab_only:
            return
        context_params = lib.llama_context_default_params()
        context_params.n_ctx = n_ctx
        context_params.n_threads = n_threads
        context_params.n_threads_batch = n_threads
        self.context = lib.llama_init_from_model(self.model, context_params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot create a context of {n_ctx} tokens")
        self._one = (lib.llama_token * 1)()
        self._warm_up()

    def _warm_up(self) -> None:
        """The run on two tokens that llama.cpp's own tools do after loading, then forgotten."""
        lib = self.lib
        lib.llama_set_warmup(self.context, True)
        self.decode([lib.llama_vocab_bos(self.vocab), lib.llama_vocab_eos(self.vocab)])
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        lib.llama_set_warmup(self.context, False)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a rendered prompt, its special tokens recognised."""
        raw = text.encode()
        room = (self.lib.llama_token * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), True, True)
        if n < 0:
            raise SystemExit("llama.cpp cannot tokenize the prompt")
        return list(room[:n])

    def shorten(self, text: str, n_tokens: int) -> str:
        """The beginning of a text, ``n_tokens`` long but for the word that this cuts through."""
        tokens = self.tokenize(text)
        if len(tokens) < n_tokens:
            raise SystemExit(f"the filler has {len(tokens)} tokens: give a smaller --context")
        head = b"".join(self.piece(token) for token in tokens[:n_tokens])
        return head.decode(errors="ignore").rpartition(" ")[0]

    def trained_context(self) -> int | None:
        """The context length that the target was trained with, if its file tells."""
        architecture = self._metadata("general.architecture")
        length = self._metadata(f"{architecture}.context_length")
        return int(length) if length else None

    def _metadata(self, key: str) -> str:
        room = ctypes.create_string_buffer(256)
        self.lib.llama_model_meta_val_str(self.model, key.encode(), room, len(room))
        return room.value.decode()

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special tokens spelled out as llama.cpp's tools print them."""
        room = ctypes.create_string_buffer(256)
        n = self.lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, True)
        return room.raw[: max(n, 0)]

    def render(self, messages: list[dict[str, str]]) -> str:
        """The messages in the target's own chat template, up to where the answer begins."""
        lib = self.lib
        template = lib.llama_model_chat_template(self.model, None)
        if not template:
            raise SystemExit("the target's file holds no chat template")
        chat = (lib.llama_chat_message * len(messages))()
        for slot, message in zip(chat, messages, strict=True):
            slot.role = message["role"].encode()
            slot.content = message["content"].encode()
        n_bytes = sum(len(slot.content) for slot in chat)
        room = ctypes.create_string_buffer(n_bytes + (1 << 12))
        n = lib.llama_chat_apply_template(template, chat, len(messages), True, room, len(room))
        if not 0 <= n <= len(room):
            raise SystemExit("llama.cpp does not know the target's chat template")
        return room.raw[:n].decode()

    def decode(self, tokens: list[int]) -> None:
        """Appends tokens to the context; only the last one's logits are kept."""
        lib = self.lib
        n_batch = int(lib.llama_n_batch(self.context))
        for start in range(0, len(tokens), n_batch):
            some = tokens[start : start + n_batch]
            array = (lib.llama_token * len(some))(*some)
            if lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(some))) != 0:
                raise SystemExit("llama_decode failed")

    def decode_one(self, token: int) -> None:
        """Appends one token, without allocating."""
        self._one[0] = token
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(self._one, 1)) != 0:
            raise SystemExit("llama_decode failed")

    def logits(self) -> Any:
        """The last token's logits as a NumPy view of llama.cpp's memory."""
        import numpy as np

        pointer = self.lib.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def is_end(self, token: int) -> bool:
        """Whether the token ends the generation."""
        return bool(self.lib.llama_vocab_is_eog(self.vocab, token))


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    """Describes the target and renders the prompts, loading its vocabulary only.

    ``n_context`` tokens of the text ``filler`` go ahead of every question.
    """
    import llama_cpp

    llama = Llama(request["target"], n_ctx=0, n_threads=1, vocab_only=True)
    if request["n_context"] > 0:
        filler = llama.shorten(request["filler"], request["n_context"])
        for messages in request["prompts"]:
            messages[-1]["content"] = f"{filler}\n\n{messages[-1]['content']}"
    prompts = [llama.render(messages) for messages in request["prompts"]]
    return {
        "prompts": prompts,
        "prompt_tokens": [llama.tokenize(prompt) for prompt in prompts],
        "trained_context": llama.trained_context(),
        "llama_cpp_python": llama_cpp.__version__,
        "system_info": llama.lib.llama_print_system_info().decode(errors="replace"),
    }


def reference(request: dict[str, Any]) -> dict[str, Any]:
    """The text everyone has to reproduce: plain greedy decoding, with how close each choice was.

    A run of its own, because looking for the runner-up costs time that no measured run should pay.
    """
    import numpy as np

    llama = Llama(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
    tokens: list[int] = []
    gaps: list[float] = []
    llama.decode(request["prompt_tokens"])
    while True:
        logits = llama.logits()
        token = int(logits.argmax())
        second, first = np.partition(logits, -2)[-2:]
        tokens.append(token)
        gaps.append(float(first - second))
        if len(tokens) == request["n_predict"] or llama.is_end(token):
            break
        llama.decode_one(token)
    pieces = [llama.piece(token).hex() for token in tokens]
    room = ctypes.create_string_buffer(256)
    llama.lib.llama_model_desc(llama.model, room, len(room))
    description = room.value.decode(errors="replace")
    return {"tokens": tokens, "gaps": gaps, "pieces": pieces, "description": description}


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """Plain greedy decoding: what llama.cpp does without a drafter."""
    llama = Llama(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
    prompt: list[int] = request["prompt_tokens"]
    tokens: list[int] = []
    target_s = 0.0
    accept_s = 0.0

    began = time.perf_counter()
    llama.decode(prompt)
    # Reading the logits waits for the computation, so the pass ends here, not when decode returns.
    token = int(llama.logits().argmax())
    prefilled = time.perf_counter()
    tokens.append(token)
    while len(tokens) < request["n_predict"] and not llama.is_end(token):
        before = time.perf_counter()
        llama.decode_one(token)
        logits = llama.logits()
        between = time.perf_counter()
        token = int(logits.argmax())
        after = time.perf_counter()
        tokens.append(token)
        target_s += between - before
        accept_s += after - between
    decode_s = time.perf_counter() - prefilled
    return {
        "tokens": tokens,
        # The first token comes with the prefill: it is neither counted nor timed as decoding.
        "n_decoded": len(tokens) - 1,
        "decode_s": decode_s,
        "phases_s": {
            "prefill": prefilled - began,
            "draft": 0.0,
            "verify": target_s,
            "accept": accept_s,
            "other": decode_s - target_s - accept_s,
        },
        "n_cycles": len(tokens) - 1,
    }


def pydflash2(request: dict[str, Any]) -> dict[str, Any]:
    """pydflash2's own loop, driven step by step through its Python package as a program would.

    Times per phase come from the library; what Python adds around its calls goes to `other`.
    """
    import llama_cpp  # noqa: F401  (first, so that the process holds one libllama)

    from pydflash2 import Drafter, Session, Target

    prompt: list[int] = request["prompt_tokens"]
    n_draft: int = request["n_draft"]
    target = Target(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
    # Not drafting means having no drafter: the library then reads no hidden states either.
    drafter = Drafter(request["drafter"]) if n_draft != 0 else None
    session = Session(target, drafter, n_draft="auto" if n_draft < 0 else n_draft)
    session.prefill(prompt[:2])  # warm-up, as for the others: two tokens through the target
    session.rewind(0)
    session.reset_stats()

    began = time.perf_counter()
    session.prefill(prompt)
    tokens = list(session.step(1).tokens)
    prefilled = time.perf_counter()
    session.reset_stats()
    is_end = False
    decode_began = time.perf_counter()
    while len(tokens) < request["n_predict"] and not is_end:
        step = session.step(request["n_predict"] - len(tokens))
        tokens.extend(step.tokens)
        is_end = step.is_end
    decode_s = time.perf_counter() - decode_began
    stats = session.stats()
    session.close()
    target.close()
    models_s = (stats.draft_us + stats.verify_us) / MICRO
    accept_s = stats.accept_us / MICRO
    return {
        "tokens": tokens,
        "n_decoded": len(tokens) - 1,
        "decode_s": decode_s,
        "phases_s": {
            "prefill": prefilled - began,
            "draft": stats.draft_us / MICRO,
            "verify": stats.verify_us / MICRO,
            "accept": accept_s,
            "other": decode_s - models_s - accept_s,
        },
        "n_cycles": stats.n_cycles,
        "n_drafted": stats.n_drafted,
        "n_accepted": stats.n_accepted,
        "drafted_at": list(stats.drafted_at),
        "accepted_at": list(stats.accepted_at),
        "memory_bytes": {
            "drafter_cache": stats.drafter_cache_bytes,
            "drafter_compute": stats.drafter_compute_bytes,
            "drafter_weights": stats.drafter_weights_bytes,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
