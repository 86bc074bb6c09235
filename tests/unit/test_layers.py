"""Dependencies between folders point one way (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# What each folder of native/ may include from the others. Its own headers and dflash2.h are free.
ALLOWED = {
    "api": {"common", "core", "cpu_backend", "drafter", "target"},
    "core": {"common", "cpu_backend", "drafter", "ops", "target"},
    "drafter": {"common", "ops"},
    "target": {"common", "cpu_backend"},
    "cpu_backend": {"common", "ops"},
    "ops": set(),
    "common": set(),
}
SOURCES = sorted(path for path in NATIVE.rglob("*") if path.suffix in {".c", ".cpp", ".h", ".inc"})


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_includes(path: Path) -> None:
    folder = path.relative_to(NATIVE).parts[0]
    for include in includes(path):
        first = include.split("/")[0]
        if first in ALLOWED and first != folder:
            assert first in ALLOWED[folder], f"{folder} must not include {include}"
        if include in ("llama.h", "llama-cpp.h"):
            assert folder == "target", "only native/target may include llama.cpp's headers"
        if include.startswith(("ggml", "gguf")):
            assert folder != "ops", "kernels must not know ggml"


def test_the_public_header_stands_alone() -> None:
    header = (NATIVE / "include" / "dflash2.h").read_text()
    assert set(re.findall(r"^#include\s+(\S+)", header, re.M)) == {
        "<stdbool.h>",
        "<stddef.h>",
        "<stdint.h>",
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "convert").glob("*.py")), ids=lambda path: path.name
)
def test_the_converter_imports_nothing_of_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "relative imports must stay inside convert/"
            modules = [node.module or ""] if node.level == 0 else []
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            assert module.split(".")[0] not in {"pydflash2", "llama_cpp", "torch", "transformers"}


def test_no_file_is_too_long() -> None:
    """A file that cannot be held in the head should be two."""
    code = [*SOURCES, *(ROOT / "convert").glob("*.py"), *(ROOT / "pydflash2").rglob("*.py")]
    for path in code:
        assert len(path.read_text().splitlines()) <= 600, path
