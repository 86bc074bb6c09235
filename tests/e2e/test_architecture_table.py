"""docs/architectures.md says what is true: which architectures load and draft, and whether the text
stays the same.

By default for some of them; DF2_FULL=1 for all (about 10 minutes), and DF2_FULL=1 DF2_WRITE=1
writes the table anew. The models are those of llama.cpp's own test, test-llama-archs, which
`make test` builds (DF2_LLAMA_ARCHS: another place of it), and of tests/tools where that has none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pydflash2
from tests.tools.recurrent_targets import write_recurrent_target
from tests.tools.tiny_targets import write_tiny_target

IS_FULL = os.environ.get("DF2_FULL") == "1"
WRITES = IS_FULL and os.environ.get("DF2_WRITE") == "1"
ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "architectures.md"
ROW = ROOT / "tests" / "tools" / "architecture_row.py"
SUITE = "build/package/tests/native/llama_suites/llama_archs"

SAMPLE = ("cogvlm", "dream", "glm4", "gpt2", "plamo2", "plamo3", "qwen2", "qwen35", "starcoder2")
COLUMNS = ("loads", "drafts", "memory", "identical", "remark")

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


@pytest.fixture(scope="module")
def suite() -> Path:
    path = Path(os.environ.get("DF2_LLAMA_ARCHS", ROOT / SUITE))
    if not path.exists():
        pytest.skip(f"needs {SUITE}, which `make test` builds")
    return path


def write_models(folder: Path, suite: Path, tiny_target: Path) -> dict[str, Path]:
    """Model files, by architecture and kind."""
    wanted = "" if IS_FULL else f"^({'|'.join(SAMPLE)})$"
    command = [suite, "--stock", "-s", "1", "-a", wanted, "-o", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    found = {}
    for path in sorted(folder.glob("*.gguf")):
        architecture, kind = path.stem.rsplit("-", 1)
        found[f"{architecture}{', experts' if kind == 'moe' else ''}"] = path
    if IS_FULL:
        for name in ("gemma3n", "gemma4"):
            path = folder / f"{name}.gguf"
            found[name] = write_tiny_target(path, name, tokenizer_from=tiny_target)
        for name in ("arwkv7", "rwkv6", "rwkv7"):
            path = folder / f"{name}.gguf"
            found[name] = write_recurrent_target(path, name, tokenizer_from=tiny_target)
    return dict(sorted(found.items()))


def measured(path: Path) -> str:
    """A line of the table, without the architecture."""
    done = subprocess.run(
        [sys.executable, ROW, path], capture_output=True, text=True, timeout=600, cwd=path.parent
    )
    if done.returncode != 0:
        return f"the process ended: {done.stderr[-500:]}"
    row = json.loads(done.stdout.splitlines()[-1])
    return " | ".join(row[column].replace("|", "/") for column in COLUMNS)


def stated() -> dict[str, str]:
    rows = re.findall(r"^\| ([^|]+?) \| (.*) \|$", TABLE.read_text(), re.M)
    return {name: rest for name, rest in rows if name not in ("architecture", "---")}


def write(lines: dict[str, str]) -> None:
    head = TABLE.read_text().split("| architecture |")[0]
    table = [f"| architecture | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    table += [f"| {name} | {line} |" for name, line in lines.items()]
    TABLE.write_text(head + "\n".join(table) + "\n")


def test_the_table_is_true(suite: Path, tiny_target: Path, tmp_path: Path) -> None:
    models = write_models(tmp_path, suite, tiny_target)
    assert len(models) >= len(SAMPLE)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(models, pool.map(measured, models.values()), strict=True))
    if WRITES:
        write(found)
    known = stated()
    assert found == {name: known.get(name, "") for name in found}
    assert not IS_FULL or list(known) == list(found)
