"""A Llama under the name of an architecture that has the same tensors and computes something else
with them, or another Llama: with a chat template, or without a head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gguf import GGUFReader, GGUFWriter

from tests.tools.gguf_files import copy_tokenizer, finish
from tests.tools.tiny_gguf import Key, write_keys


def write_renamed_target(
    path: Path,
    source: Path,
    architecture: str = "llama",
    keys: Mapping[str, Key] = MappingProxyType({}),
    *,
    chat_template: str | None = None,
    is_tied: bool = False,
) -> Path:
    """Copy a model file, with another architecture and further keys of it. Returns `path`.

    is_tied: without the head, so that the embeddings serve as one."""
    model = GGUFReader(source)
    writer = GGUFWriter(path, architecture)
    for name, field in model.fields.items():
        if name.startswith("llama."):
            new_name = name.replace("llama", architecture, 1)
            writer.add_key_value(new_name, field.contents(), field.types[0])
    write_keys(writer, architecture, keys)
    copy_tokenizer(writer, model)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for tensor in model.tensors:
        if is_tied and tensor.name == "output.weight":
            continue
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return path
