"""What n_draft="auto" learns, between processes: where it is kept, and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pydflash2
from pydflash2._profiles import profiles_folder

PROMPT = [5, 6, 7, 8]


def test_where_profiles_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DF2_PROFILES")
    assert profiles_folder(True) == tmp_path / "pydflash2" / "profiles"
    assert profiles_folder(False) is None
    assert profiles_folder("here") == "here"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_folder(True) == tmp_path / ".cache" / "pydflash2" / "profiles"
    monkeypatch.setenv("DF2_PROFILES", "there")
    assert profiles_folder(True) == "there"
    assert profiles_folder(tmp_path) == tmp_path
    monkeypatch.setenv("DF2_PROFILES", "off")
    assert profiles_folder(True) is None


def test_a_folder_that_is_no_text(tiny_target: Path) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match="not valid Unicode"):
        pydflash2.load(tiny_target, n_ctx=256, profiles="\ud800x")


def test_a_text_leaves_a_profile(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, profiles=folder) as llm:
        assert not folder.exists()
        text = llm.generate(PROMPT, max_tokens=30).tokens
        (first,) = folder.iterdir()  # already: a program may end without closing anything
        assert llm.generate(PROMPT, max_tokens=30).tokens == text
    assert list(folder.iterdir()) == [first]
    for damaged in (b"", first.read_bytes()[:-20], b"\xff" * 100):
        first.write_bytes(damaged)
        with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, profiles=folder) as llm:
            assert llm.generate(PROMPT, max_tokens=30).tokens == text
        assert first.read_bytes() != damaged


@pytest.mark.parametrize("profiles", [False, True, "file"])
def test_nothing_is_kept_where_nothing_can_be(
    tiny_target: Path,
    tiny_drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profiles: str | bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # and DF2_PROFILES says "off"
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, profiles=profiles) as llm:
        assert len(llm.generate(PROMPT, max_tokens=10).tokens) == 10
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_fixed_lengths_keep_nothing(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> None:
    with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, n_draft=2, profiles=tmp_path) as llm:
        llm.generate(PROMPT, max_tokens=10)
    assert not list(tmp_path.iterdir())


def test_another_process_finds_it(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> None:
    script = (
        "import sys, pydflash2\n"
        "target, drafter, folder = sys.argv[1:]\n"
        "llm = pydflash2.load(target, drafter, n_ctx=256, profiles=folder)\n"
        f"llm.generate({PROMPT}, max_tokens=30)\n"
    )
    command = [sys.executable, "-c", script, tiny_target, tiny_drafter, tmp_path]
    kept = []
    for _ in range(2):
        subprocess.run([str(part) for part in command], check=True, timeout=120)
        (file,) = tmp_path.iterdir()
        kept.append(file.read_text())
    head = kept[0].partition("\n\n")[0]
    assert head.startswith("target ")
    assert kept[1].partition("\n\n")[0] == head
    assert kept[1] != kept[0]
