"""Dependencies between folders point one way (docs/architecture.md), and code can be held in the
head: no file over 600 lines, no function over 60."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tools.functions import functions

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
FILE_LINES = 600
FUNCTION_LINES = 60

# What each folder of native/ may include from the others. Its own headers and dflash2.h are free.
ALLOWED = {
    "api": {"core", "drafter", "target", "cpu_backend", "common"},
    "core": {"drafter", "target", "ops", "common"},
    "drafter": {"cpu_backend", "ops", "common"},
    "target": {"cpu_backend", "common"},
    "cpu_backend": {"ops", "common"},
    "ops": set(),
    "common": set(),
}
# What each folder of Python may import of the project's packages. A tool of the tests may serve the
# bench, never the other way round.
PACKAGES = {"bench", "convert", "pydflash2", "tests"}
MAY_IMPORT = {
    "bench": {"bench", "pydflash2", "tests.tools"},
    "convert": {"convert"},
    "pydflash2": {"pydflash2"},
    "tests/tools": {"convert", "pydflash2", "tests.tools"},
}
NOT_IN_CONVERT = {"llama_cpp", "torch", "transformers"}

C_SUFFIXES = {".c", ".cpp", ".h", ".inc"}
CODE = sorted(
    path
    for folder in ("native", "tests", "bench", "convert", "pydflash2", "examples", "scripts")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in C_SUFFIXES | {".py", ".S"} or path.name == "CMakeLists.txt"
)
SOURCES = [path for path in CODE if path.suffix in C_SUFFIXES and NATIVE in path.parents]
MODULES = [
    (folder, path) for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def includes(text: str) -> list[str]:
    """What a source includes, in quotes or in angle brackets, or names in a macro to be included.

    Where the macro itself is included there is nothing to see."""
    lines = re.findall(r"^[ \t]*#[ \t]*include\b[ \t]*(.*)$", text, re.M)
    lines += re.findall(r"^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+([<\"].*\.(?:h|inc)[>\"])", text, re.M)
    named = [line for line in lines if not re.match(r"[A-Z]\w*", line)]
    found = [re.match(r'[<"]([^<>"]+)[>"]', line) for line in named]
    assert all(found), f"an include that names no file: {named}"
    return [match[1] for match in found if match]


def wrong_include(folder: str, include: str) -> str:
    """Why a file in a folder of native/ must not include that; empty if it may."""
    first, _, rest = include.partition("/")
    if ".." in include.split("/"):
        return "paths begin at native/"
    if rest and first in ALLOWED:
        return "" if first in {folder, *ALLOWED[folder]} else f"{folder} must not know {first}"
    if include.startswith("llama") and folder != "target" and include != "llama_internals.h":
        return "only native/target may include llama.cpp's headers"
    if include.startswith(("ggml", "gguf")) and folder == "ops":
        return "kernels must not know ggml"
    return ""


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_includes(path: Path) -> None:
    folder = path.relative_to(NATIVE).parts[0]
    if folder == "include":
        return  # test_the_public_header_stands_alone
    for include in includes(path.read_text()):
        assert not wrong_include(folder, include), include


@pytest.mark.parametrize(
    ("folder", "text", "is_wrong"),
    [
        ("drafter", '#include "target/target.h"', True),
        ("target", '#include "drafter/drafter.h"', True),
        ("drafter", '#include "../target/target.h"', True),
        ("drafter", '  #  include "target/target.h"', True),
        ("cpu_backend", '#include "target/target.h"', True),
        ("target", '#include "core/session.h"', True),
        ("common", '#include "ops/qmm/qmm.h"', True),
        ("ops", '#include "common/error.h"', True),
        ("ops", "#include <ggml.h>", True),
        ("ops", '#include "gguf.h"', True),
        ("core", "#include <llama.h>", True),
        ("ops", '#define KERNELS "drafter/kernels.inc"\n#include KERNELS', True),
        ("cpu_backend", '#include "llama-cpp.h"', True),
        ("core", '#include "target/target.h"', False),
        ("drafter", '#include "cpu_backend/packed_buffer.h"', False),
        ("drafter", '#include "ggml.h"', False),
        ("target", '#include "llama.h"', False),
        ("ops", '#include "ops/common/cpu.h"', False),
        ("ops", "#include <math.h>", False),
    ],
)
def test_wrong_includes_are_noticed(folder: str, text: str, is_wrong: bool) -> None:
    (include,) = includes(f"// a file\n{text}  // why\n")
    assert bool(wrong_include(folder, include)) == is_wrong


def test_every_folder_of_native_has_its_arrows() -> None:
    assert {path.relative_to(NATIVE).parts[0] for path in SOURCES} == {*ALLOWED, "include"}
    assert any(path.suffix == ".inc" for path in SOURCES)


def test_the_public_header_stands_alone() -> None:
    header = (NATIVE / "include" / "dflash2.h").read_text()
    assert set(re.findall(r"^#include\s+(\S+)", header, re.M)) == {
        "<stdbool.h>",
        "<stddef.h>",
        "<stdint.h>",
    }


def imports(text: str, package: tuple[str, ...]) -> list[str]:
    """The modules that a module of a package imports, and names in them, from the top."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = [*start, *([node.module] if node.module else [])]
            found += [".".join([*module, alias.name]) for alias in node.names]
    return found


def wrong_imports(folder: str, names: list[str]) -> list[str]:
    """Those that a folder of Python must not import."""

    def is_within(name: str, packages: set[str]) -> bool:
        return any(f"{name}.".startswith(f"{package}.") for package in packages)

    wrong = [
        name
        for name in names
        if is_within(name, PACKAGES) and not is_within(name, MAY_IMPORT[folder])
    ]
    if folder == "convert":
        wrong += [name for name in names if is_within(name, NOT_IN_CONVERT)]
    return wrong


@pytest.mark.parametrize(("folder", "path"), MODULES, ids=[name_of(path) for _, path in MODULES])
def test_imports(folder: str, path: Path) -> None:
    package = path.relative_to(ROOT).parent.parts
    assert not wrong_imports(folder, imports(path.read_text(), package))


@pytest.mark.parametrize(
    ("folder", "text", "is_wrong"),
    [
        ("pydflash2", "import bench.report", True),
        ("pydflash2", "from tests import tools", True),
        ("pydflash2", "from .. import bench", True),
        ("convert", "from pydflash2 import load", True),
        ("convert", "from ..pydflash2 import load", True),
        ("convert", "def f():\n    import llama_cpp.llama_cpp", True),
        ("bench", "from tests import conftest", True),
        ("bench", "from tests.parity import numpy_drafter", True),
        ("bench", "import convert", True),
        ("tests/tools", "from bench import report", True),
        ("bench", "from tests.tools.errors import ToolError", False),
        ("bench", "from tests.tools import synthetic", False),
        ("bench", "from . import report\nimport pydflash2", False),
        ("pydflash2", "from pydflash2.convert import convert", False),
        ("convert", "from .errors import ConversionError\nimport benchmarks", False),
    ],
)
def test_wrong_imports_are_noticed(folder: str, text: str, is_wrong: bool) -> None:
    assert bool(wrong_imports(folder, imports(text, tuple(folder.split("/"))))) == is_wrong


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    """A file that cannot be held in the head should be two."""
    assert len(path.read_text().splitlines()) <= FILE_LINES


def long_functions(path: Path) -> dict[str, int]:
    """Functions over the limit and how long they are."""
    return {
        f"{name_of(path)} {one.name}": one.n_lines
        for one in functions(path)
        if one.n_lines > FUNCTION_LINES
    }


def test_no_function_is_too_long() -> None:
    """Tables are no functions."""
    found: dict[str, int] = {}
    for path in CODE:
        if path.suffix in C_SUFFIXES | {".py"}:
            found |= long_functions(path)
    assert found == {}
