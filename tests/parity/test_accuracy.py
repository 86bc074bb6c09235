"""Models compute with the kernels what they compute without them, and no less exactly.

Two measures, per quantisation of SmolLM2, each side in a process of its own. The perplexity of a
text must not move. And the logits must be no further from the exact ones than llama.cpp's own are:
the same weights, dequantised to float32 and run with nothing in half precision.

By default two types and a short text; DF2_FULL=1 runs every type on 16,384 tokens (about an
hour on 2 cores). `pytest -s` shows the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.tools.kernels import Kernels
from tests.tools.quantise import FILE_TYPES, requantised, write_requantised
from tests.tools.worker_process import ask

IS_FULL = os.environ.get("DF2_FULL") == "1"
TYPES = [name for name in FILE_TYPES if name != "F32"] if IS_FULL else ["Q4_1", "Q4_K_M"]
N_TOKENS = 16384 if IS_FULL else 768
N_SENTENCES = 40 if IS_FULL else 8
WINDOW = 256
VERIFY = 8  # tokens per decode when a draft is verified

PERPLEXITY_CHANGE = 0.005
"""More than this fails if it is more than chance, too: rounding of activations moves the losses of
single tokens of so small a model by 0.1, and llama.cpp's own perplexity by 0.3 % over 3,000 tokens
when they are decoded 8 at a time instead of 256."""
ERROR_RATIO = 1.03 if IS_FULL else 1.06
"""Where both sides round activations alike, their errors differ by chance: by about 1 % over the
40 sentences."""

STOCK = Kernels("stock", ours=False)
OURS = Kernels("ours", ours=True)
_DISABLED, _UNSUPPORTED = 3, 4  # df2_kernels_state


@pytest.fixture(scope="module", autouse=True)
def _kernels_in_use() -> None:
    found = ask("tests.tools.model_worker", {"task": "kernels"}, environment=dict(os.environ))
    if found["state"] in (_DISABLED, _UNSUPPORTED):
        pytest.skip(f"kernels are not in use: {found['note']}")


@pytest.fixture(scope="module", params=TYPES)
def model(
    request: pytest.FixtureRequest, smollm_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """SmolLM2 in one type."""
    if request.param == "Q4_1":
        return smollm_target
    folder = None if IS_FULL else tmp_path_factory.mktemp("types")
    return requantised(smollm_target, request.param, folder=folder)


@pytest.fixture
def exact_model(model: Path, tmp_path: Path) -> Iterator[Path]:
    """The same weights in float32."""
    path = tmp_path / "float.gguf"
    write_requantised(model, path, FILE_TYPES["F32"])
    yield path
    path.unlink()


def english_text() -> str:
    """The Python language's own documentation, which every installation brings along."""
    return "\n".join(topics[name] for name in sorted(topics))


def decode(task: str, path: Path, kernels: Kernels, **request: Any) -> dict[str, Any]:
    """Has one model decode something with these kernels."""
    reply = ask(
        "tests.tools.model_worker",
        {
            "task": task,
            "model": str(path),
            "kernels": kernels.ours,
            "n_ctx": 512,
            "n_threads": 2,
            **request,
        },
        environment=kernels.variables(),
    )
    assert kernels.ours == ("DFLASH2" in reply["weight_buffers_mib"])
    return reply


@pytest.mark.parametrize("width", [VERIFY, WINDOW], ids=["verify", "prefill"])
def test_perplexity(model: Path, width: int) -> None:
    text = english_text()
    losses = {
        kernels.name: np.array(
            decode(
                "perplexity",
                model,
                kernels,
                text=text,
                n_tokens=N_TOKENS,
                window=WINDOW,
                width=width,
            )["losses"]
        )
        for kernels in (STOCK, OURS)
    }
    difference = losses["ours"] - losses["stock"]
    change = float(np.expm1(difference.mean()))
    # of the mean, as if tokens were independent
    uncertainty = float(difference.std() / np.sqrt(difference.size))
    print(
        f"{model.stem}, {difference.size} tokens, {width} at a time: perplexity "
        f"{np.exp(losses['stock'].mean()):.3f} stock, {np.exp(losses['ours'].mean()):.3f} ours, "
        f"change {change:+.3%}, standard error {uncertainty:.3%}"
    )
    assert abs(change) < max(PERPLEXITY_CHANGE, 4 * uncertainty)


def test_logits_are_no_less_exact(model: Path, exact_model: Path, tmp_path: Path) -> None:
    """Up to a constant per row: it changes no probability, and is most of this model's error."""
    expected = logits(exact_model, STOCK, tmp_path, exact=True)
    error = {}
    shifted_error = {}
    for kernels in (STOCK, OURS):
        found = logits(model, kernels, tmp_path)
        error[kernels.name] = relative_error(centred(found), centred(expected))
        shifted_error[kernels.name] = relative_error(found, expected)
    ratio = error["ours"] / error["stock"]
    print(
        f"{model.stem}, {len(expected)} tokens: relative error of the logits {error['stock']:.4f} "
        f"stock, {error['ours']:.4f} ours, ratio {ratio:.3f}; constants included "
        f"{shifted_error['stock']:.4f}, {shifted_error['ours']:.4f}"
    )
    assert ratio < ERROR_RATIO


def sentences(n: int) -> list[str]:
    """Some of the text's sentences, far apart."""
    found = [part for part in english_text().split(". ") if 60 < len(part) < 400]
    return found[:: len(found) // n][:n]


def logits(
    path: Path, kernels: Kernels, folder: Path, *, exact: bool = False
) -> npt.NDArray[np.float32]:
    """Every token's logits on the sentences."""
    out = folder / "logits.bin"
    reply = decode(
        "logits",
        path,
        kernels,
        prompts=sentences(N_SENTENCES),
        out=str(out),
        width=VERIFY,
        exact=exact,
    )
    rows = np.fromfile(out, np.float32).reshape(reply["n_rows"], reply["n_vocab"])
    out.unlink()
    return rows


def centred(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Every row less its mean."""
    less: npt.NDArray[np.float32] = rows - rows.mean(1, keepdims=True)
    return less


def relative_error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """|found - expected| / |expected|, all rows together."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
