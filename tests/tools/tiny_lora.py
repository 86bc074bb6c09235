"""Adapters (LoRA) with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gguf import GGUFReader, GGUFWriter

from tests.tools.gguf_files import finish
from tests.tools.tiny_gguf import RandomTensors

_EMBEDDINGS = "token_embd.weight"


def write_tiny_lora(
    path: Path, target: Path, weights: Sequence[str], *, rank: int = 4, seed: int = 1
) -> Path:
    """Write an adapter of these weights of a target, matrices or experts, large enough to change
    its text. Returns `path`."""
    source = GGUFReader(target)
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    writer = GGUFWriter(path, source.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    tensors = RandomTensors(seed)
    for name in weights:
        n_in, n_out, *experts = (int(length) for length in shapes[name])
        # rows of embeddings are looked up, not multiplied with: llama.cpp wants both transposed
        first, last = (n_out, n_in) if name == _EMBEDDINGS else (n_in, n_out)
        tensors.add(f"{name}.lora_a", *experts, rank, first, mean=0.0, deviation=first**-0.5)
        tensors.add(f"{name}.lora_b", *experts, last, rank, mean=0.0, deviation=0.7)
        if name == _EMBEDDINGS:
            tensors.by_name[f"{name}.lora_a"] = tensors.by_name[f"{name}.lora_a"].T.copy()
    for name, values in tensors.by_name.items():
        writer.add_tensor(name, values)
    finish(writer)
    return path
