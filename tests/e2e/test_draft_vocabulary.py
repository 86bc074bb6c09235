"""Drafters with a draft vocabulary: the same candidates as far as they are kept, the same text."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from pydflash2.convert.ggml_types import I64
from pydflash2.convert.gguf_read import GgufFile
from pydflash2.convert.gguf_write import TensorHeader, padding, write_header
from pydflash2.convert.target import copy_value

import pydflash2
from pydflash2 import convert
from pydflash2.cli import _convert_measure, _convert_text
from tests.tools.prompts import questions
from tests.tools.terminal import output_in_a_terminal

COMMAND = (sys.executable, "-m", "pydflash2")
TINY = ("tiny-plain", "tiny-window", "tiny-softcap", "tiny-v1")
WITHOUT = {"convert", "data", "__pycache__"}
SIZES = (150, 37, 8)  # of 160 tokens
N_DRAFT = 7

Ids = npt.NDArray[np.int64]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run: not the source tree, which `python -m` would import from."""
    return tmp_path


# Prompts that the tiny target's vocabulary, which has no space, can spell.
MEASURE = (
    sys.executable,
    "-c",
    "import sys; from pydflash2.cli import _convert_measure, main; "
    "_convert_measure.PROMPTS = tuple('abcdefghijkl'); sys.exit(main(sys.argv[1:]))",
)


def run(
    folder: Path, *arguments: str | Path | int, command: tuple[str, ...] = COMMAND
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "convert", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )


def source(root: Path, name: str = "tiny-plain") -> Path:
    return root / "tests" / "data" / "fixtures" / name


def kept_tokens(path: Path) -> Ids:
    """Target ids of the rows of a drafter's head."""
    with GgufFile(path) as file:
        return np.frombuffer(file.tensor_bytes("d2t"), "<i8")


def with_head(drafter_path: Path, target: Path, kept: Ids | None, path: Path) -> Path:
    """A copy of a drafter file with rows of the target's tied head, or with no head of its own."""
    with GgufFile(drafter_path) as drafter, GgufFile(target) as model:
        headers = [TensorHeader(t.name, t.shape, t.kind) for t in drafter.tensors.values()]
        headers = [header for header in headers if header.name not in ("output.weight", "d2t")]
        parts = {header.name: drafter.tensor_bytes(header.name) for header in headers}
        if kept is not None:
            head = model.tensors["token_embd.weight"]
            assert "output.weight" not in model.tensors
            headers.append(TensorHeader("output.weight", (head.shape[0], len(kept)), head.kind))
            parts["output.weight"] = model.row_bytes(head.name, kept.tolist())
            headers.append(TensorHeader("d2t", (len(kept),), I64))
            parts["d2t"] = kept.astype("<i8").tobytes()
        with path.open("wb") as file:
            write_header(file, [copy_value(drafter, key) for key in drafter.values], headers)
            for header in headers:
                data = parts[header.name]
                file.write(data + padding(len(data)))
    return path


def drafts(target: Path, drafter: Path, prompt: list[int], n_tokens: int) -> list[pydflash2.Draft]:
    """What the drafter proposes after each of some tokens of the target's own continuation."""
    made = []
    with (
        pydflash2.Target(target, n_ctx=512) as opened,
        pydflash2.Drafter(drafter) as loaded,
        pydflash2.Session(opened, loaded, n_draft=0) as session,
    ):
        session.prefill(prompt)
        for _ in range(n_tokens):
            session.step(1)
            made.append(session.draft(N_DRAFT))
    return made


def assert_restricted(
    full: list[pydflash2.Draft], reduced: list[pydflash2.Draft], kept: Ids
) -> None:
    """Logits are the full vocabulary's, bit for bit, and candidates the best of them: ties go to
    the lower id, as they do in the full vocabulary."""
    for one, other in zip(full, reduced, strict=True):
        np.testing.assert_array_equal(one.hidden, other.hidden)
        logits = one.logits[:, kept]
        np.testing.assert_array_equal(logits, other.logits)
        n_candidates = other.candidates.shape[1]
        best = np.argsort(-logits, axis=1, kind="stable")[:, :n_candidates]
        np.testing.assert_array_equal(kept[best], other.candidates)
        assert set(other.tokens) <= set(kept)


@pytest.mark.parametrize("name", TINY)
def test_candidates_are_the_full_vocabularys(
    name: str, root: Path, tiny_target: Path, tmp_path: Path
) -> None:
    prompt = list(range(10, 40))
    paths = {size: tmp_path / f"{size}.gguf" for size in (0, *SIZES)}
    for size, path in paths.items():
        convert.convert(source(root, name), tiny_target, path, draft_vocab=size or None)
    full = drafts(tiny_target, paths[0], prompt, 6)
    for size in SIZES:
        reduced = drafts(tiny_target, paths[size], prompt, 6)
        assert_restricted(full, reduced, kept_tokens(paths[size]))
        assert reduced[0].logits.shape == (N_DRAFT, size)
    # What is best of all stays best wherever it is kept, transitions included.
    with_all_but_few = drafts(tiny_target, paths[150], prompt, 6)
    assert any((a.tokens == b.tokens).all() for a, b in zip(full, with_all_but_few, strict=True))


def test_candidates_of_a_tied_quantised_head(
    smollm_target: Path, smollm_drafter: Path, tmp_path: Path
) -> None:
    prompt = [504, 3575, 282, 4649, 314]  # "The capital of France is"
    whole = with_head(smollm_drafter, smollm_target, None, tmp_path / "whole.gguf")
    full = drafts(smollm_target, whole, prompt, 3)
    assert full[0].logits.shape == (N_DRAFT, 49152)
    random = np.random.default_rng(1)
    for size in (16384, 5001):  # whole tiles of the kernels, and not
        kept = np.sort(random.choice(49152, size, replace=False))
        path = with_head(smollm_drafter, smollm_target, kept, tmp_path / "reduced.gguf")
        assert_restricted(full, drafts(smollm_target, path, prompt, 3), kept)


@pytest.mark.parametrize("name", TINY)
def test_the_text_is_the_targets(name: str, root: Path, tiny_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "reduced.gguf"
    convert.convert(source(root, name), tiny_target, path, draft_vocab=64)
    with pydflash2.load(tiny_target, path, n_ctx=256, n_draft=N_DRAFT) as llm:
        prompts = [list(range(first, first + 20)) for first in range(5, 120, 20)]
        drafted = [llm.generate(prompt, max_tokens=60) for prompt in prompts]
        assert sum(one.stats.n_drafted for one in drafted) > 0
        llm.set_drafting(False)
        for prompt, one in zip(prompts, drafted, strict=True):
            assert llm.generate(prompt, max_tokens=60).tokens == one.tokens


def test_the_text_is_smollm2s(smollm_target: Path, smollm_drafter: Path, tmp_path: Path) -> None:
    kept = np.arange(8192)  # the tokenizer's order, ends of generation included
    path = with_head(smollm_drafter, smollm_target, kept, tmp_path / "reduced.gguf")
    with pydflash2.load(smollm_target, path, n_ctx=512, n_draft=N_DRAFT) as llm:
        chats = [llm.format_chat([{"role": "user", "content": q}]) for q in questions(4)]
        drafted = [llm.generate(chat, max_tokens=60) for chat in chats]
        assert sum(one.stats.n_accepted for one in drafted) > 20
        llm.set_drafting(False)
        for chat, one in zip(chats, drafted, strict=True):
            assert llm.generate(chat, max_tokens=60).tokens == one.tokens


# -- The command -----------------------------------------------------------------------------------


def test_counting_text(folder: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are those of the tokenizer, however the text is cut into pieces and files."""
    monkeypatch.setattr(_convert_text, "PIECE_CHARACTERS", 1000)
    line = "ab,a?\n"
    text = line * 600
    (folder / "a.txt").write_text(text, encoding="utf-8")
    (folder / "b.txt").write_text("cc", encoding="utf-8")
    counts = _convert_text.count_tokens(tiny_target, [folder / "a.txt", folder / "b.txt"])
    with pydflash2.Target(tiny_target, n_ctx=32) as target:
        once = target.vocab.tokenize(line, add_special=False, parse_special=False)
        more = target.vocab.tokenize("cc", add_special=False, parse_special=False)
    assert len(set(once)) > 3
    assert counts == {
        token: 600 * once.count(token) + more.count(token) for token in {*once, *more}
    }


def test_control_tokens_in_text_are_text(folder: Path, tiny_target: Path) -> None:
    (folder / "a.txt").write_text("</s>")
    assert 2 not in _convert_text.count_tokens(tiny_target, [folder / "a.txt"])


def test_convert_with_text(folder: Path, root: Path, tiny_target: Path) -> None:
    (folder / "text.txt").write_text("hello,hello\n")
    base = (source(root), "--target", tiny_target, "--outfile", "made.gguf", "--draft-vocab", 20)
    done = run(folder, *base, "--vocab-text", "text.txt")
    assert done.returncode == 0, done.stderr
    counted = _convert_text.count_tokens(tiny_target, [folder / "text.txt"])
    n_by_order = 20 - len(counted) - 1  # the end of a text is kept too
    made = (
        f"20 of 160 tokens: {len(counted)} by counts, {n_by_order} by the tokenizer's order, "
        "1 kept in any case"
    )
    assert f"draft vocabulary: {made}, with 100.00% of all that was counted\n" in done.stderr
    assert f"only {len(counted)} different tokens were counted" in done.stderr
    assert set(counted) <= set(kept_tokens(folder / "made.gguf").tolist())
    done = subprocess.run(
        [*COMMAND, "inspect", "made.gguf", "--target", str(tiny_target)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert re.search(r"^head +its own \(20 tokens\)$", done.stdout, re.MULTILINE)
    assert re.search(rf"^draft tokens +{re.escape(made)}$", done.stdout, re.MULTILINE)
    assert done.returncode == 0


def test_bad_texts_and_options(folder: Path, root: Path, tiny_target: Path) -> None:
    (folder / "latin1.txt").write_bytes(b"caf\xe9\n")
    (folder / "empty.txt").write_text("")
    (folder / "hf").mkdir()
    base = (source(root), "--outfile", "made.gguf")
    vocab = ("--draft-vocab", 20)
    cases: list[tuple[tuple[str | Path | int, ...], str]] = [
        (
            ("--target", tiny_target, *vocab, "--vocab-text", "latin1.txt"),
            r"latin1\.txt: not UTF-8",
        ),
        (("--target", tiny_target, *vocab, "--vocab-text", "empty.txt"), "no text to count"),
        (
            ("--target", tiny_target, *vocab, "--vocab-text", "none.txt"),
            r"none\.txt: no such file: give",
        ),
        (
            ("--target", tiny_target, *vocab, "--vocab-text", "none/*.txt"),
            r"none/\*\.txt: no file matches this pattern: give",
        ),
        (
            ("--target", tiny_target, *vocab, "--vocab-text", "hf"),
            r"hf: a folder: name the text files in it \(hf/\*\.txt\)",
        ),
        (("--target", "hf", *vocab, "--vocab-text", "empty.txt"), "hf is a folder"),
        (("--target", tiny_target, "--vocab-text", "empty.txt"), "add --draft-vocab"),
        (("--target", tiny_target, "--measure"), "add --draft-vocab"),
        (("--target", tiny_target, *vocab, "--measure", "--dry-run"), "--dry-run does not write"),
        (("--target", "hf", *vocab, "--measure"), "hf is a folder"),
    ]
    for options, message in cases:
        done = run(folder, *base, *options)
        assert done.returncode == 1, options
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert re.search(message, line)
    assert not (folder / "made.gguf").exists()


def test_the_source_tree_has_no_converter(folder: Path, root: Path) -> None:
    """`python -m` in a checkout finds the package there, not the installed one."""
    shutil.copytree(root / "pydflash2", folder / "pydflash2", ignore=lambda *_: WITHOUT)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    for command in ("convert", "inspect"):
        done = subprocess.run(
            [*COMMAND, command, "--help"], capture_output=True, text=True, cwd=folder, env=env
        )
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {folder / 'pydflash2'} has no converter")
        assert "run the installed `pydflash2` command" in line


TABLE = r"""drafter +tokens +acceptance length +share *
full vocabulary +160 +\d\.\d{3} +100\.0% *
draft vocabulary +(\d+) +\d\.\d{3} +(\d+\.\d)% *
\d+ tokens over 12 prompts, 7 drafted at a time; the same text with both
"""


def test_measure(folder: Path, root: Path, tiny_target: Path) -> None:
    base = (source(root), "--target", tiny_target, "--outfile", "made.gguf", "--measure")
    done = run(folder, *base, "--draft-vocab", 159, command=MEASURE)
    assert done.returncode == 0, done.stderr
    match = re.match(TABLE, done.stdout)
    assert match, done.stdout
    assert match[1] == "159"
    assert os.listdir(folder) == ["made.gguf"]  # nothing of the comparison stays
    done = run(folder, *base, "--draft-vocab", 5, "--quiet", command=MEASURE)
    assert done.stderr == ""
    match = re.match(TABLE, done.stdout)
    assert match, done.stdout
    assert match[1] == "5"
    assert (_convert_measure.HINT in done.stdout) == (float(match[2]) < 97)


def test_measure_gives_a_hint_where_much_is_lost(
    root: Path,
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_convert_measure, "PROMPTS", ("ab", "cd"))
    arguments = [source(root), "--target", tiny_target, "--outfile", tmp_path / "made.gguf"]
    parser = argparse.ArgumentParser()
    convert.add_arguments(parser)
    args = parser.parse_args([*map(str, arguments), "--draft-vocab", "100", "--quiet"])
    assert convert.run(args) == 0
    for share, is_hinted in ((0.0, False), (9.0, True)):
        monkeypatch.setattr(_convert_measure, "GOOD_SHARE", share)
        _convert_measure.run(args)
        assert (_convert_measure.HINT in capsys.readouterr().out) == is_hinted


def test_measure_counts_what_the_drafter_did(
    root: Path, tiny_target: Path, tiny_drafter: Path
) -> None:
    prompts = [list(range(10, 40)), [50, 51, 52]]
    with (
        pydflash2.Target(tiny_target, n_ctx=256) as target,
        pydflash2.Drafter(tiny_drafter) as drafter,
    ):
        calls: list[int] = []
        outcome = _convert_measure.measure(
            target, drafter, prompts, N_DRAFT, lambda: calls.append(1)
        )
    assert len(calls) == 2
    n_generated = sum(map(len, outcome.texts))
    # Each text begins with a token that no cycle made.
    assert outcome.n_accepted + outcome.n_cycles == n_generated - 2
    assert outcome.acceptance_length == pytest.approx((n_generated - 2) / outcome.n_cycles)
    with pydflash2.load(tiny_target, n_ctx=256) as llm:
        for prompt, text in zip(prompts, outcome.texts, strict=True):
            assert llm.generate(prompt, max_tokens=_convert_measure.N_TOKENS).tokens == text


def test_measure_in_a_terminal(folder: Path, root: Path, tiny_target: Path) -> None:
    arguments = [source(root), "--target", tiny_target, "--outfile", "made.gguf"]
    command = [*MEASURE, "convert", *map(str, arguments), "--draft-vocab", "100", "--measure"]
    output = output_in_a_terminal(command, folder, {"COLUMNS": "100"})
    assert "measuring" in output
    assert "draft vocabulary" in output
