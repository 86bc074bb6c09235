"""Decodes batches with one model, and reads their logits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tools import kernels
from tests.tools.errors import ToolError
from tests.tools.llama_file import LlamaFile

Logits = npt.NDArray[np.float32]
MAX_BATCH = 512  # tokens of one decode


class Decoder(LlamaFile):
    """A model and one context.

    ``exact`` is for float32 models: a float32 cache and no flash attention, so that nothing rounds
    to half precision. ``isa``: the instruction set of our kernels, None without them.
    """

    def __init__(
        self, path: str, *, n_ctx: int, n_threads: int, isa: str | None, exact: bool
    ) -> None:
        super().__init__(path)
        self.isa = isa
        lib = self.lib
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = MAX_BATCH
        params.n_threads = params.n_threads_batch = n_threads
        if exact:
            params.type_k = params.type_v = lib.GGML_TYPE_F32
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = self.open_context(params)
        self._memory = lib.llama_get_memory(self.context)
        self._batch = lib.llama_batch_init(MAX_BATCH, 0, 1)

    def weight_buffers(self) -> dict[str, float]:
        """MiB of weights in each kind of buffer, by ggml's names, as the log tells."""
        buffers: dict[str, float] = {}
        for line in self.log:
            name, separator, size = line.partition(" model buffer size =")
            if separator:
                # "load_tensors:   CPU_REPACK" and "  76.50 MiB"
                buffers[name.split()[-1]] = float(size.split()[0])
        return buffers

    def tensor_types(self) -> dict[str, int]:
        """How many tensors of each type the file holds, as the log tells."""
        found = (re.search(r"- type +(\w+): +(\d+) tensors", line) for line in self.log)
        return {match[1]: int(match[2]) for match in found if match}

    def decode(self, tokens: Sequence[int], position: int, *, all_logits: bool) -> None:
        """Appends tokens at a position and waits for the result."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        self.run()

    def run(self) -> None:
        """Decodes the batch as the last call of `decode` left it."""
        if self.lib.llama_decode(self.context, self._batch) != 0:
            raise ToolError("llama_decode failed", "ask for less depth or fewer tokens")
        self.lib.llama_synchronize(self.context)

    def rewind(self, n_tokens: int) -> None:
        """Forgets everything after the first tokens."""
        if not self.lib.llama_memory_seq_rm(self._memory, 0, n_tokens, -1):
            raise ToolError(
                "this model's memory cannot be rewound token by token", "measure another model"
            )

    def rows(self, n: int) -> Logits:
        """The first n rows of logits, as a view of llama.cpp's memory."""
        pointer = self.lib.llama_get_logits(self.context)
        rows: Logits = np.ctypeslib.as_array(pointer, shape=(n, self.n_vocab))
        return rows


def open_decoder(request: dict[str, Any]) -> Decoder:
    """The model that a request names, with the kernels it asks for."""
    isa = kernels.enable() if request["kernels"] else None
    return Decoder(
        request["model"],
        n_ctx=request["n_ctx"],
        n_threads=request["n_threads"],
        isa=isa,
        exact=request.get("exact", False),
    )
