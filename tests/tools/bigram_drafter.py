"""A drafter that recites which token followed which in some texts. For targets that have no trained
one: random drafts are hardly ever accepted, and what follows an accepted one would go untested."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_gguf import Weights

_RANK = 64
_MAX_VOCABULARY = 1024


def write_bigram_drafter(
    path: Path,
    texts: Sequence[Sequence[int]],
    *,
    target: Path,
    n_vocab: int,
    taps: tuple[int, ...] = (1, 3),
    block_size: int = 8,
) -> Path:
    """Write a drafter for `target`, whose vocabulary has n_vocab tokens. Returns `path`.

    taps: the target's layers that it reads, counted from 1, although nothing comes of them.

    Its layers add nothing and its hidden states are all alike, so a token's score is that of its
    frequency in the texts, and, much larger, that of following the token before it."""
    frequencies = Counter(token for text in texts for token in text[1:])
    followers: dict[int, Counter[int]] = defaultdict(Counter)
    for text in texts:
        for token, follower in pairwise(text):
            followers[token][follower] += 1
    by_frequency = sorted(range(n_vocab), key=lambda token: -frequencies[token])
    vocabulary = sorted(by_frequency[:_MAX_VOCABULARY])
    known = set(vocabulary)

    def recite(tensors: dict[str, Weights]) -> None:
        for name in tensors:
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                tensors[name][:] = 0
        unit = np.zeros(tensors["token_embd.weight"].shape[1], np.float32)
        unit[0] = 1
        n_embd = len(unit)
        tensors["token_embd.weight"][:] = unit
        tensors["output_norm.weight"][:] = 1
        # after the norm, the hidden state is unit * sqrt(n_embd)
        tensors["selector_hidden.weight"][:] = unit / n_embd**0.5
        weights = np.log1p([frequencies[token] for token in vocabulary])
        tensors["output.weight"][:] = np.outer(0.05 * weights, unit) / n_embd**0.5
        codes = np.random.default_rng(5).standard_normal((n_vocab, _RANK)).astype(np.float32)
        codes /= np.linalg.norm(codes, axis=1, keepdims=True)
        tensors["selector_successor.weight"][:] = codes
        predecessors = tensors["selector_predecessor.weight"]
        predecessors[:] = 0
        for token, counts in followers.items():
            likely = next((f for f, _ in counts.most_common() if f in known), None)
            if likely is not None:
                predecessors[token] = 10 * codes[likely]
        tensors["d2t"] = np.array(vocabulary, np.int64)

    shape = TinyDrafter(
        rank=_RANK,
        top_k=len(vocabulary),
        n_vocab_draft=len(vocabulary),
        taps=taps,
        block_size=block_size,
        extras=frozenset({"token_embd", "output", "d2t"}),
    )
    return write_tiny_drafter(path, shape, target=target, change=recite)
