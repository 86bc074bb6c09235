"""The examples in the documents run as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

import pydflash2
from bench.__main__ import parse

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


def promised(code: str) -> list[str]:
    """What print() calls print, according to the comments beside them."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", code, re.M)


PYTHON = [(document.name, code) for document in DOCUMENTS for code in blocks(document, "python")]


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_python(name: str, code: str, tmp_path: Path, smollm_target: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "acceptance length" in run.stdout
    printed = {line.strip() for line in run.stdout.splitlines()}
    assert printed.issuperset(promised(code))


def test_there_are_python_examples() -> None:
    assert {"README.md", "quickstart.md"} <= {name for name, _ in PYTHON}
    assert any(promised(code) for _, code in PYTHON)


LLAMA = Path(llama_cpp.__file__).parent
WITH_LLAMA = [f"-I{LLAMA.parent / 'include'}", f"-L{LLAMA / 'lib'}", "-lllama"]
WITH_LLAMA += [f"-Wl,-rpath,{LLAMA / 'lib'}"]


def compiled(source: Path, folder: Path, *options: str) -> Path:
    """The program of a C source, built with a plain compiler against the installed package."""
    package = Path(pydflash2.__file__).parent
    library = Path(os.environ.get("DF2_LIBRARY", package / "lib" / "libdflash2.so"))
    compiler = shutil.which("cc")
    assert compiler is not None
    program = folder / source.stem
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program]
    command += [f"-I{ROOT / 'native' / 'include'}", library, *options]
    command += [f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath-link,{LLAMA / 'lib'}"]
    subprocess.run(command, check=True)
    return program


def test_c(tmp_path: Path, smollm_target: Path, smollm_drafter: Path) -> None:
    """The README's C program."""
    (code,) = blocks(ROOT / "README.md", "c")
    (tmp_path / "main.c").write_text(code)
    program = compiled(tmp_path / "main.c", tmp_path)
    run = subprocess.run(
        [program, smollm_target, smollm_drafter],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    # "Paris" follows, whatever comes later
    with pydflash2.load(smollm_target) as llm:
        expected = llm.generate([504, 3575, 282, 4649, 314], max_tokens=8).tokens
    assert [int(token.rstrip("*")) for token in run.stdout.split()][:8] == list(expected)


def test_c_example_refuses_a_long_prompt(
    tmp_path: Path, tiny_target: Path, tiny_drafter: Path
) -> None:
    """The tiny target has a token per character and a context of 512."""
    program = compiled(ROOT / "examples" / "c" / "generate.c", tmp_path, *WITH_LLAMA)
    for n_tokens, message in ((512, ""), (513, "513 tokens"), (5000, "5000 tokens")):
        run = subprocess.run(
            [program, tiny_target, tiny_drafter, n_tokens * "a", "1"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == (1 if message else 0), run.stderr
        assert message in run.stderr
        assert bool(message) == ("the context holds 512: shorten the prompt" in run.stderr)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    """Every relative link leads somewhere."""
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link


BENCH = "python -m bench"


def bench_commands(text: str) -> list[list[str]]:
    """The arguments of every bench command in a document, in a block or inside a sentence."""
    fence = re.compile(r"^```.*?\n(.*?)^```", re.M | re.S)
    lines = [part for block in fence.findall(text) for part in re.split(r"\n|&&|\|", block)]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", fence.sub("", text))]
    found = [shlex.split(part, comments=True) for part in (*lines, *spans) if BENCH in part]
    return [words[words.index("bench") + 1 :] for words in found]


def check_bench(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Has the real parser read the arguments; what it leaves to a program, its help must name."""
    _, found = parse(arguments)
    passed_on = [word for word in getattr(found, "passed_on", []) if word.startswith("-")]
    if passed_on:
        with pytest.raises(SystemExit):
            parse([arguments[0], "--help"])
        known = re.findall(r"--[a-z-]+", capsys.readouterr().out)
        assert set(passed_on) <= set(known)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_bench_commands(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = bench_commands(document.read_text())
    assert len(commands) == document.read_text().count(BENCH)
    for arguments in commands:
        check_bench(arguments, capsys)


def test_there_are_bench_commands() -> None:
    named = {tuple(words[:1]) for path in DOCUMENTS for words in bench_commands(path.read_text())}
    assert named >= {("--drafter",), ("cost-curve",), ("draft",), ("kernels",)}


@pytest.mark.parametrize(
    "wrong",
    [
        "--drafters FILE",
        "cost_curve",
        "cost-curve --widths 0",
        "draft --shape 7b",
        "kernels --op nothing",
        "kernels --ops matmul",
    ],
)
def test_wrong_bench_commands_are_noticed(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"Run `{BENCH}\n{wrong}`, or\n```\npip install . && {BENCH} {wrong}  # a comment\n```\n"
    commands = bench_commands(text)
    assert commands == [wrong.split()] * 2
    with pytest.raises((SystemExit, AssertionError)):
        check_bench(commands[0], capsys)
