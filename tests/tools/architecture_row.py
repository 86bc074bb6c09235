"""Tries one model: prints what there is to say of its architecture, as JSON.

Usage: python architecture_row.py MODEL. A process of its own, because llama.cpp may end it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import llama_cpp
from gguf import GGUFReader

import pydflash2
from pydflash2._ffi import address, library

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.tools.bigram_drafter import write_bigram_drafter
from tests.tools.layer_outputs import plain_texts

N_TOKENS = 64
PROMPTS = [[6 + i * 37 % 120 for i in range(length)] for length in (1, 12, 40, 23)]
OPTIONS = {"n_ctx": 256, "n_threads": 1}


def memory_form(llm: pydflash2.Llama, has_replayed: bool) -> str:
    """How the target's memory goes back, as docs/architecture.md has it."""
    context = int(address(library().df2_target_context(llm.target._pointer)))
    model = llama_cpp.llama_get_model(context)
    if not (llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)):
        return "truncation"
    n_planes = llama_cpp.llama_n_rs_seq(context)
    if n_planes == 0:
        assert has_replayed
        return "marks"
    return "kept inputs" if n_planes == 8 else "snapshots"  # as target_memory.h has them


def drafters(folder: Path, target: Path, texts: Sequence[list[int]]) -> tuple[Path, Path]:
    """One that is right where a token has one follower, and one that never is."""
    model = GGUFReader(target)
    architecture = model.fields["general.architecture"].contents()
    n_layer = int(model.fields[f"{architecture}.block_count"].contents())
    n_vocab = len(model.fields["tokenizer.ggml.tokens"].contents())
    wrong = [[a, (b + 1) % n_vocab] for text in texts for a, b in pairwise(text)]
    paths = (folder / "right.gguf", folder / "wrong.gguf")
    for path, known in zip(paths, (texts, wrong), strict=True):
        taps = tuple(sorted({1, n_layer // 2 + 1, n_layer}))
        write_bigram_drafter(path, known, target=target, n_vocab=n_vocab, taps=taps)
    return paths


def try_drafting(path: Path, row: dict[str, str]) -> None:
    expected = plain_texts(path, PROMPTS, N_TOKENS)
    texts = [prompt + text for prompt, text in zip(PROMPTS, expected, strict=True)]
    n_drafted = n_accepted = n_replayed = n_same = 0
    with tempfile.TemporaryDirectory() as folder:
        for drafter in drafters(Path(folder), path, texts):
            with pydflash2.load(path, drafter, n_draft=7, **OPTIONS) as llm:  # type: ignore[arg-type]
                row["drafts"] = "yes"
                for prompt, text in zip(PROMPTS, expected, strict=True):
                    got = llm.generate(prompt, max_tokens=N_TOKENS)
                    n_same += list(got.tokens) == text
                    n_drafted += got.stats.n_drafted
                    n_accepted += got.stats.n_accepted
                    n_replayed += got.stats.n_replayed
                row["memory"] = memory_form(llm, n_replayed > 0)
    row["identical"] = "yes" if n_same == 2 * len(PROMPTS) else f"{n_same} of {2 * len(PROMPTS)}"
    if not 0 < n_accepted < n_drafted:
        row["identical"] = "nothing was tried"


def measure(path: Path) -> dict[str, str]:
    row = dict.fromkeys(("loads", "drafts", "memory", "identical", "remark"), "")
    try:
        pydflash2.Target(path, **OPTIONS).close()  # type: ignore[arg-type]
        row["loads"] = "yes"
        row["drafts"] = "no"
        try_drafting(path, row)
    except pydflash2.Dflash2Error as error:
        row["remark"] = str(error).replace(str(path), path.name)
    return row


if __name__ == "__main__":
    assert pydflash2.enable_kernels().state == "active"
    print(json.dumps(measure(Path(sys.argv[1]))))
