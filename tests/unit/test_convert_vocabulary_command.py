"""What the `convert` command says about draft vocabularies, and which options it refuses."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import FIXTURES, TARGET  # noqa: E402

from convert import add_arguments, describe, run  # noqa: E402

PLAIN = FIXTURES / "tiny-plain"
OUTPUT = "output.weight"


def run_cli(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(list(map(str, arguments))))


def test_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    counts = tmp_path / "counts.txt"
    counts.write_text("100 75\n101 25\n" + "".join(f"{i} 0\n" for i in range(90)))
    base = (PLAIN, "--target", TARGET, "--outfile", tmp_path / "out.gguf", "--draft-vocab", 20)
    assert run_cli(*base, "--vocab-counts", counts, "--dry-run") == 0
    captured = capsys.readouterr()
    assert re.search(r"output\.weight.*20 of 160 rows, copied", captured.out)
    assert re.search(r"d2t.*I64.*token ids of the rows", captured.out)
    assert not (tmp_path / "out.gguf").exists()
    for text in (
        captured.err,
        (run_cli(*base, "--vocab-counts", counts), capsys.readouterr().err)[1],
    ):
        made = "20 of 160 tokens: 2 by counts, 17 by the tokenizer's order, 1 kept in any case"
        assert f"draft vocabulary: {made}, with 100.00% of all that was counted\n" in text
        assert text.count("  advice: only 2 different tokens were counted, fewer than the 20") == 1
        assert "kept in any case: </s>" in text
        assert f"adds 5.1 kB to file and memory: a second copy of these rows of {OUTPUT}" in text
    row = rf"^dflash2\.converter\.draft_vocabulary  +STRING  +{re.escape(made)}$"
    assert re.search(row, captured.out, re.MULTILINE)
    size = f"{(tmp_path / 'out.gguf').stat().st_size / 1e6:.1f} MB"
    assert text.endswith(f"wrote {tmp_path / 'out.gguf'}: 38 tensors, {size}\n")
    assert run_cli(*base) == 0
    text = capsys.readouterr().err
    assert "20 of 160 tokens, by the tokenizer's order\n" in text
    assert "advice" not in text
    facts = describe(tmp_path / "out.gguf").drafter
    assert facts is not None
    assert facts.draft_vocab_size == 20
    assert facts.draft_vocab_choice == "20 of 160 tokens, by the tokenizer's order"


def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = (PLAIN, "--target", TARGET, "--outfile", tmp_path / "out.gguf")
    for options, message in (
        (("--vocab-counts", "x"), "--vocab-counts is for .* add --draft-vocab"),
        (("--vocab-text", "x"), "--vocab-text is for .* add --draft-vocab"),
        (("--draft-vocab", 9, "--vocab-text", "x", "--vocab-counts", "y"), "not both"),
        (("--draft-vocab", 9, "--vocab-text", "x"), "use `pydflash2 convert`"),
    ):
        assert run_cli(*base, *options) == 1
        assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert os.listdir(tmp_path) == []
