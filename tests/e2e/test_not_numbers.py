"""Weights that make NaN or infinity of everything: a target's is an error that says so, a drafter's
ends the drafting and leaves the text alone."""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import pydflash2
from tests.e2e.test_recurrent import context_of
from tests.tools.changed_files import with_values
from tests.tools.layer_outputs import ggml_base

PROMPT = [7, 23, 99, 4]
ALL = slice(None)

OF_TARGET = {
    "a layer": ("blk.2.ffn_down.weight", (ALL, math.nan)),
    "a token's row of the head": ("output.weight", (70, math.nan)),
    "an overflow": ("output_norm.weight", (ALL, 3e38)),
}
OF_DRAFTER = {
    "a layer": ("blk.1.ffn_down.weight", (ALL, math.nan)),
    "the selector": ("selector_hidden.weight", (ALL, math.nan)),
    "an overflow": ("output_norm.weight", (ALL, 3e38)),
}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("case", OF_TARGET)
def test_a_targets_are_an_error(
    tiny_target: Path,
    tiny_drafter: Path,
    tmp_path: Path,
    case: str,
    kernels: bool,
    options: dict[str, Any],
) -> None:
    broken = with_values(tiny_target, tmp_path / "broken.gguf", dict([OF_TARGET[case]]))
    with pydflash2.load(broken, tiny_drafter, n_ctx=256, kernels=kernels) as llm:
        for _ in range(2):  # the model is usable, as far as it ever was
            with pytest.raises(pydflash2.PoisonedError, match="NaN or infinite"):
                llm.generate(PROMPT, max_tokens=8, **options)
        session = llm.session
        session.prefill(PROMPT)
        with pytest.raises(pydflash2.PoisonedError, match="NaN or infinite"):
            session.step()
        assert session.tokens == tuple(PROMPT)
        with pytest.raises(pydflash2.PoisonedError, match="earlier failure"):
            session.step()


@pytest.mark.parametrize("n_draft", [5, "auto"])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("case", OF_DRAFTER)
def test_a_drafters_end_the_drafting(
    tiny_target: Path,
    tiny_drafter: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: str,
    kernels: bool,
    n_draft: Any,
) -> None:
    broken = with_values(tiny_drafter, tmp_path / "broken.gguf", dict([OF_DRAFTER[case]]))
    with pydflash2.load(tiny_target, n_ctx=256, kernels=kernels) as llm:
        expected = [llm.generate(prompt, max_tokens=90).tokens for prompt in (PROMPT, PROMPT[1:])]
    options: Any = {"n_draft": n_draft}
    with (
        caplog.at_level(logging.WARNING, "pydflash2"),
        pydflash2.load(tiny_target, broken, n_ctx=256, kernels=kernels, **options) as llm,
    ):
        for prompt, text in zip((PROMPT, PROMPT[1:]), expected, strict=True):
            got = llm.generate(prompt, max_tokens=90)
            assert got.tokens == text
            assert got.stats.n_drafted == 0
    (warning,) = caplog.messages
    assert "broken.gguf' gives NaN or infinite scores: this session drafts no more" in warning


@pytest.mark.parametrize(
    ("tokens", "value", "is_error"),
    [
        ([5], -math.inf, False),  # a token that is not to be chosen
        ([5], math.inf, True),
        ([5], math.nan, True),
        ([159], -math.nan, True),
        (range(160), -math.inf, True),
        (range(159), -math.inf, False),
    ],
)
def test_what_of_the_logits_is_an_error(
    tiny_target: Path, tokens: Sequence[int], value: float, is_error: bool
) -> None:
    ggml = ggml_base()

    def on_tensor(tensor: int, is_asking: bool, _data: int) -> bool:
        """Writes into the last row of logits that llama.cpp has computed."""
        is_logits = ggml.ggml_get_name(tensor) == b"result_output"
        if is_logits and not is_asking:
            n = ggml.ggml_nelements(tensor)
            values = (ctypes.c_float * n).from_address(ggml.ggml_get_data(tensor))
            for token in tokens:
                values[n - 160 + token] = value
        return is_logits or not is_asking

    callback = llama_cpp.ggml_backend_sched_eval_callback(on_tensor)
    with (
        context_of(tiny_target, cb_eval=callback) as context,
        pydflash2.Target.attach(context, n_batch=512) as target,
        pydflash2.Session(target) as session,
    ):
        session.prefill(PROMPT)
        if is_error:
            with pytest.raises(pydflash2.PoisonedError, match="NaN or infinite"):
                session.step()
        else:
            assert session.step().tokens[0] not in tokens
