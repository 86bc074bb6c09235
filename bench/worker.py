"""Runs one system on one prompt: a worker of `ask`.

Loading the model and warming it up happen before any clock starts.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.tools.errors import ToolError
from tests.tools.llama_file import LlamaFile
from tests.tools.worker_process import serve

if TYPE_CHECKING:
    from pydflash2 import Session, Stats

MICRO = 1e6


class Vocabulary(LlamaFile):
    """A target's vocabulary and chat template, without its weights."""

    def __init__(self, path: str) -> None:
        super().__init__(path, vocab_only=True)

    def shorten(self, text: str, n_tokens: int) -> str:
        """The beginning of a text, ``n_tokens`` long but for the word that this cuts through."""
        tokens = self.tokenize(text, is_prompt=True)
        if len(tokens) < n_tokens:
            raise ToolError(f"the filler has {len(tokens)} tokens", "a smaller --context")
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

    def render(self, messages: list[dict[str, str]]) -> str:
        """The messages in the target's own chat template, up to where the answer begins."""
        lib = self.lib
        template = lib.llama_model_chat_template(self.model, None)
        if not template:
            raise ToolError("the target's file holds no chat template", "another --target")
        chat = (lib.llama_chat_message * len(messages))()
        for slot, message in zip(chat, messages, strict=True):
            slot.role = message["role"].encode()
            slot.content = message["content"].encode()
        n_bytes = sum(len(slot.content) for slot in chat)
        room = ctypes.create_string_buffer(n_bytes + (1 << 12))
        n = lib.llama_chat_apply_template(template, chat, len(messages), True, room, len(room))
        if not 0 <= n <= len(room):
            raise ToolError(
                "llama.cpp does not know the target's chat template", "another --target"
            )
        return room.raw[:n].decode()


class Plain(LlamaFile):
    """A target that decodes greedily, one token at a time, after a warm-up."""

    def __init__(self, path: str, *, n_ctx: int, n_threads: int) -> None:
        super().__init__(path)
        params = self.lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_threads = n_threads
        params.n_threads_batch = n_threads
        self.context = self.open_context(params)
        self._one = (self.lib.llama_token * 1)()
        self._warm_up()

    def _warm_up(self) -> None:
        """The run on two tokens that llama.cpp's own tools do after loading, then forgotten."""
        lib = self.lib
        lib.llama_set_warmup(self.context, True)
        self.decode([lib.llama_vocab_bos(self.vocab), lib.llama_vocab_eos(self.vocab)])
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        lib.llama_set_warmup(self.context, False)

    def decode(self, tokens: list[int]) -> None:
        """Appends tokens to the context; only the last one's logits are kept."""
        lib = self.lib
        n_batch = int(lib.llama_n_batch(self.context))
        for start in range(0, len(tokens), n_batch):
            some = tokens[start : start + n_batch]
            array = (lib.llama_token * len(some))(*some)
            self._decode(lib.llama_batch_get_one(array, len(some)))

    def decode_one(self, token: int) -> None:
        """Appends one token, without allocating."""
        self._one[0] = token
        self._decode(self.lib.llama_batch_get_one(self._one, 1))

    def _decode(self, batch: Any) -> None:
        if self.lib.llama_decode(self.context, batch) != 0:
            raise ToolError("llama_decode failed", "a larger --ctx, or fewer --tokens")

    def logits(self) -> npt.NDArray[np.float32]:
        """The last token's logits as a view of llama.cpp's memory."""
        pointer = self.lib.llama_get_logits_ith(self.context, -1)
        row: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))
        return row

    def is_end(self, token: int) -> bool:
        """Whether the token ends the generation."""
        return bool(self.lib.llama_vocab_is_eog(self.vocab, token))


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    """Describes the target and renders the prompts, loading its vocabulary only.

    ``n_context`` tokens of the text ``filler`` go ahead of every question.
    """
    llama = Vocabulary(request["target"])
    if request["n_context"] > 0:
        filler = llama.shorten(request["filler"], request["n_context"])
        for messages in request["prompts"]:
            messages[-1]["content"] = f"{filler}\n\n{messages[-1]['content']}"
    prompts = [llama.render(messages) for messages in request["prompts"]]
    return {
        "prompts": prompts,
        "prompt_tokens": [llama.tokenize(prompt, is_prompt=True) for prompt in prompts],
        "trained_context": llama.trained_context(),
        "system_info": llama.lib.llama_print_system_info().decode(errors="replace"),
    }


def reference(request: dict[str, Any]) -> dict[str, Any]:
    """The text everyone has to reproduce: plain greedy decoding, with how close each choice was.

    A run of its own, because looking for the runner-up costs time that no measured run should pay.
    """
    llama = Plain(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
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
    return {
        "tokens": tokens,
        "gaps": gaps,
        "pieces": pieces,
        "description": llama.description(),
    }


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """Plain greedy decoding: what llama.cpp does without a drafter."""
    llama = Plain(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
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

    n_draft: int = request["n_draft"]
    target = Target(request["target"], n_ctx=request["n_ctx"], n_threads=request["n_threads"])
    # Not drafting means having no drafter: the library then reads no hidden states either.
    drafter = Drafter(request["drafter"]) if n_draft != 0 else None
    session = Session(
        target,
        drafter,
        n_draft="auto" if n_draft < 0 else n_draft,
        profiles=request["knows_pair"],
    )
    reply = decode_timed(session, request["prompt_tokens"], request["n_predict"])
    session.close()
    target.close()
    return reply


def decode_timed(session: Session, prompt: list[int], n_predict: int) -> dict[str, Any]:
    """A text of so many tokens, or up to its end, and what the library counted."""
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
    while len(tokens) < n_predict and not is_end:
        step = session.step(n_predict - len(tokens))
        tokens.extend(step.tokens)
        is_end = step.is_end
    decode_s = time.perf_counter() - decode_began
    return {
        "tokens": tokens,
        "n_decoded": len(tokens) - 1,
        "decode_s": decode_s,
        **_reported(session.stats(), prefill_s=prefilled - began, decode_s=decode_s),
    }


def _reported(stats: Stats, *, prefill_s: float, decode_s: float) -> dict[str, Any]:
    """What the library counted while it decoded."""
    models_s = (stats.draft_us + stats.verify_us) / MICRO
    accept_s = stats.accept_us / MICRO
    return {
        "phases_s": {
            "prefill": prefill_s,
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
    }


if __name__ == "__main__":
    sys.exit(
        serve({"inspect": inspect, "reference": reference, "plain": plain, "pydflash2": pydflash2})
    )
