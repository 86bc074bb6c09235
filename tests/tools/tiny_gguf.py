"""What the writers of tiny models share."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType, GGUFWriter

Key = int | float | bool | str | Sequence[int] | Sequence[bool]
Weights = npt.NDArray[np.float32] | npt.NDArray[np.int64]

_VALUE_TYPES = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}


def write_keys(writer: GGUFWriter, architecture: str, keys: Mapping[str, Key]) -> None:
    """Write hyper-parameters, named without the architecture."""
    for name, value in keys.items():
        if isinstance(value, (int, float, str)):
            writer.add_key_value(f"{architecture}.{name}", value, _VALUE_TYPES[type(value)])
        else:
            writer.add_array(f"{architecture}.{name}", list(value))


class RandomTensors:
    """Tensors by name. Their values follow from seed, name and shape alone, not from which others
    there are."""

    def __init__(self, seed: int) -> None:
        self.by_name: dict[str, Weights] = {}
        self._seed = seed

    def add(self, name: str, *lengths: int, mean: float, deviation: float) -> None:
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        values = mean + deviation * generator.standard_normal(lengths)
        self.by_name[name] = values.astype(np.float32)

    def matrix(self, name: str, *lengths: int) -> None:
        """One that keeps the magnitude of what it multiplies, or several of them."""
        self.add(name, *lengths, mean=0.0, deviation=lengths[-1] ** -0.5)

    def norm(self, name: str, length: int) -> None:
        self.add(name, length, mean=1.0, deviation=0.2)
