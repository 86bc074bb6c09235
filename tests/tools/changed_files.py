"""Copies of model files with other values in some of their tensors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from gguf import GGUFReader


def with_values(source: Path, path: Path, values: Mapping[str, tuple[object, float]]) -> Path:
    """Copy a GGUF file to `path` and set, in tensors of float32, what an index selects to a value:
    tensor name -> (index, value). Returns `path`."""
    shutil.copyfile(source, path)
    tensors = {tensor.name: tensor for tensor in GGUFReader(path, "r+").tensors}
    for name, (index, value) in values.items():
        tensors[name].data[index] = value
    return path
