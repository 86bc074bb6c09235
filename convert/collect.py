"""Metadata that the gguf package knows how to gather, in our own entries.

Its writer is used as a notebook only: the package decides what a model card or a tokenizer folder
yields (the same as upstream's converter), and nothing is written by it.
"""

from __future__ import annotations

from gguf import GGUFWriter
from gguf.constants import GGUFValueType

from .gguf_write import Metadata, array, scalar


def notebook() -> GGUFWriter:
    """An empty writer without a file."""
    return GGUFWriter(path=None, arch="dflash")


def entries(writer: GGUFWriter) -> list[Metadata]:
    """Everything noted in `writer` except the architecture, in order."""
    result = []
    for key, value in writer.kv_data[0].items():
        if key == "general.architecture":
            continue
        if value.type is GGUFValueType.ARRAY:
            element = value.sub_type or GGUFValueType.get_type(value.value[0])
            result.append(array(key, element, value.value))
        else:
            result.append(scalar(key, value.type, value.value))
    return result
