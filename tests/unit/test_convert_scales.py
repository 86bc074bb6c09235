"""What a drafter's file says about embeddings and logits when its configuration does not: what the
target, whose weights it shares, does to them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import TARGET, Drafter  # noqa: E402

from convert import convert  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402
from convert.target import hf_scales  # noqa: E402
from tests.tools.renamed_target import write_renamed_target  # noqa: E402

STATED = {"embedding_scale": 6.5}


def converted(
    folder: Path, drafter: Drafter, architecture: str, keys: dict[str, Any]
) -> tuple[float | None, str]:
    """The scale in the file that comes of it, and the decisions."""
    target = write_renamed_target(folder / "target.gguf", TARGET, architecture, keys)
    out = folder / "out.gguf"
    report = convert(drafter.save(folder / "drafter"), target, out)
    with GgufFile(out) as file:
        return file.get("dflash.embedding_scale"), " ".join(report.decisions)


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("gemma", {}, 8.0),
        ("gemma2", {}, 8.0),
        ("gemma3", {}, 8.0),
        ("gemma3n", {}, 8.0),
        ("gemma4", {}, 8.0),
        ("afmoe", {}, 8.0),
        ("granite", STATED, 6.5),
        ("granitemoe", STATED, 6.5),
        ("granite", {}, None),
        ("minicpm", {}, 12.0),
        ("minicpm", STATED, 6.5),
        ("minicpm3", {}, 12.0),
        ("llama", {}, None),
        ("llama", STATED, None),  # not a key of that architecture
    ],
)
def test_a_missing_embedding_scale_is_the_targets(
    tmp_path: Path, architecture: str, keys: dict[str, Any], expected: float | None
) -> None:
    found, decisions = converted(tmp_path, Drafter.load("tiny-plain"), architecture, keys)
    assert found == expected
    assert (f"embedding scale {expected or 0:g}: the target's" in decisions) == bool(expected)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_stated_one_wins(tmp_path: Path, scale: float) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["dflash_config"]["input_embedding_scale"] = scale
    found, decisions = converted(tmp_path, drafter, "gemma3", {})
    assert found == scale
    assert "embedding scale" not in decisions


def test_embeddings_of_the_drafters_own_are_as_they_are(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        drafter.tensors[name] = drafter.tensors["fc.weight"][:1, :64].repeat(160, axis=0)
    found, decisions = converted(tmp_path, drafter, "gemma2", {"final_logit_softcapping": 30.0})
    assert found is None
    assert "missing" not in decisions


@pytest.mark.parametrize(
    ("name", "changes", "is_told"),
    [
        ("tiny-plain", {}, True),
        ("tiny-plain", {"output_multiplier": 1.0}, False),
        ("tiny-plain", {"final_logit_softcapping": 30.0}, False),
        ("tiny-v1", {}, False),  # without a selector only the order of the logits matters
    ],
)
def test_logits_that_the_target_changes_are_told(
    tmp_path: Path, name: str, changes: dict[str, Any], is_told: bool
) -> None:
    drafter = Drafter.load(name)
    drafter.config["dflash_config"] |= changes
    keys = {"final_logit_softcapping": 30.0, "logit_scale": 0.25}
    _, decisions = converted(tmp_path, drafter, "command-r", keys)
    told = "not as the target's (logit_scale 0.25, final_logit_softcapping 30)" in decisions
    assert told == is_told


@pytest.mark.parametrize(
    ("config", "embedding", "logits"),
    [
        ({"model_type": "gemma3_text"}, 8.0, ""),
        (
            {"model_type": "gemma2", "final_logit_softcapping": 30.0},
            8.0,
            "final_logit_softcapping 30",
        ),
        (
            {"model_type": "granitemoe", "embedding_multiplier": 12, "logits_scaling": 8},
            12.0,
            "logit_scale 8",
        ),
        ({"model_type": "minicpm", "scale_emb": 10}, 10.0, ""),
        ({"model_type": "minicpm3"}, 12.0, ""),
        ({"model_type": "llama", "embedding_multiplier": 12}, 1.0, ""),
        ({"model_type": "qwen3", "final_logit_softcapping": None}, 1.0, ""),
        ({}, 1.0, ""),
    ],
    ids=json.dumps,
)
def test_of_configurations(config: dict[str, Any], embedding: float, logits: str) -> None:
    found = hf_scales(config, 64)
    assert (found.embedding, found.logits) == (embedding, logits)
