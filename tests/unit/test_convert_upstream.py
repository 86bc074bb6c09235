"""Our files against llama.cpp's own converter: keys, types, values, shapes and every byte of data.

By default against stored manifests (`tests/tools/upstream_manifest.py` makes them). With
DF2_UPSTREAM=1 and DF2_LLAMA_CPP_DIR the converter itself is run, by DF2_UPSTREAM_PYTHON
if set (an interpreter with torch and transformers). DF2_DRAFTER_DIR and DF2_DRAFTER_TARGET
name the SmolLM2 drafter's folder and its target's GGUF, which are too large to store here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import DRAFTERS, FIXTURES, TARGET, VARIANTS, mrope_target  # noqa: E402
from upstream_manifest import manifest_of  # noqa: E402

from convert import convert  # noqa: E402
from tests.tools.published import PUBLISHED  # noqa: E402

DATA = ROOT / "tests" / "data" / "convert"
OUTTYPES = ("f32", "f16", "bf16", "q8_0")


def compare(ours: dict[str, Any], upstream: dict[str, Any]) -> None:
    """All equal but the tokenizer (ours is the target's) and our own documented keys."""
    assert ours["tensors"] == upstream["tensors"]
    kept = "tokenizer.ggml.mask_token_id"
    keys = {
        key: value
        for key, value in ours["keys"].items()
        if key == kept or not key.startswith(("tokenizer.", "dflash2."))
    }
    assert keys == upstream["keys"]


def ours(drafter: Path, target: Path, outtype: str, out: Path) -> dict[str, Any]:
    convert(drafter, target, out, outtype=outtype)
    manifest: dict[str, Any] = json.loads(json.dumps(manifest_of(out)))
    return manifest


@pytest.mark.parametrize("outtype", OUTTYPES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_tiny_drafters_equal_upstreams(name: str, outtype: str, tmp_path: Path) -> None:
    stored = json.loads((DATA / "upstream-manifest.json").read_text())
    mine = ours(FIXTURES / name, TARGET, outtype, tmp_path / "out.gguf")
    compare(mine, stored[f"{name}/{outtype}"])


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_equal_upstreams(name: str, tmp_path: Path) -> None:
    """Rarer configuration keys, optional tensors and an M-RoPE target."""
    stored = json.loads((DATA / "upstream-manifest.json").read_text())
    folder = VARIANTS[name]().save(tmp_path / name)
    target = mrope_target(tmp_path / "target.gguf")
    compare(ours(folder, target, "f32", tmp_path / "out.gguf"), stored[f"{name}/f32"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_equal_upstreams(name: str, tmp_path: Path) -> None:
    """But for causality where the configuration is silent: upstream then writes nothing, and takes
    no layer for causal."""
    published = PUBLISHED[name]
    stored = json.loads((DATA / "upstream-manifest.json").read_text())[f"{name}/bf16"]
    target = mrope_target(tmp_path / "target.gguf") if published.has_mrope else TARGET
    if "num_target_layers" in published.config:  # as many as this target has
        published = replace(published, config={**published.config, "num_target_layers": 4})
    mine = ours(published.save(tmp_path / name), target, "bf16", tmp_path / "out.gguf")
    if "is_causal" not in published.config:
        assert mine["keys"].pop("dflash.attention.causal")[1] is False
    compare(mine, stored)


@pytest.mark.skipif("DF2_DRAFTER_DIR" not in os.environ, reason="needs DF2_DRAFTER_DIR")
@pytest.mark.parametrize("outtype", OUTTYPES)
def test_smollm2_drafter_equals_upstreams(outtype: str, tmp_path: Path) -> None:
    stored = json.loads((DATA / "upstream-manifest-smollm2.json").read_text())
    folder = Path(os.environ["DF2_DRAFTER_DIR"])
    target = Path(os.environ["DF2_DRAFTER_TARGET"])
    compare(
        ours(folder, target, outtype, tmp_path / "out.gguf"),
        stored[f"smollm2-135m-dflash2/{outtype}"],
    )


@pytest.mark.skipif(os.environ.get("DF2_UPSTREAM") != "1", reason="needs DF2_UPSTREAM=1")
def test_upstream_still_writes_what_the_manifest_says(tmp_path: Path) -> None:
    out = tmp_path / "manifest.json"
    command: list[str | Path] = [
        os.environ.get("DF2_UPSTREAM_PYTHON", sys.executable),
        ROOT / "tests" / "tools" / "upstream_manifest.py",
        "--llama-cpp",
        os.environ["DF2_LLAMA_CPP_DIR"],
        "--target",
        FIXTURES / "tiny-target" / "hf",
        "--out",
        out,
        "--variants",
    ]
    command += [part for outtype in OUTTYPES for part in ("--outtype", outtype)]
    command += [FIXTURES / name for name in DRAFTERS]
    subprocess.run(list(map(str, command)), check=True)
    assert json.loads(out.read_text()) == json.loads((DATA / "upstream-manifest.json").read_text())
