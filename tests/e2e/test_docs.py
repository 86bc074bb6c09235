"""The examples in the documents run as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

import pydflash2

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


PYTHON = [(document.name, code) for document in DOCUMENTS for code in blocks(document, "python")]


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_python(name: str, code: str, tmp_path: Path, smollm_target: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "acceptance length" in run.stdout


def test_there_are_python_examples() -> None:
    assert {"README.md", "quickstart.md"} <= {name for name, _ in PYTHON}


def test_c(tmp_path: Path, smollm_target: Path, smollm_drafter: Path) -> None:
    """The README's C program, built with a plain compiler against the installed package."""
    (code,) = blocks(ROOT / "README.md", "c")
    (tmp_path / "main.c").write_text(code)
    package = Path(pydflash2.__file__).parent
    libraries = Path(llama_cpp.__file__).parent / "lib"
    library = Path(os.environ.get("DFLASH2_LIBRARY", package / "lib" / "libdflash2.so"))
    compiler = shutil.which("cc")
    assert compiler is not None
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "main.c", "-o", "main"]
    command += [f"-I{ROOT / 'native' / 'include'}", str(library)]
    command += [f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath-link,{libraries}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = subprocess.run(
        [tmp_path / "main", smollm_target, smollm_drafter],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    # "Paris" follows, whatever comes later
    with pydflash2.load(smollm_target) as llm:
        expected = llm.generate([504, 3575, 282, 4649, 314], max_tokens=8).tokens
    assert [int(token.rstrip("*")) for token in run.stdout.split()][:8] == list(expected)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    """Every relative link leads somewhere."""
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link
