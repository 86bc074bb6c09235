"""Writes the files of tests/data/corpus: states of model files that once gave a wrong message or
none. The list beside them says what each must be answered with.

    python tests/tools/write_corpus.py
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gguf.constants import GGUFValueType  # noqa: E402

from convert.gguf_write import Metadata, array, scalar  # noqa: E402

CORPUS = ROOT / "tests" / "data" / "corpus"
U16, U32 = GGUFValueType.UINT16, GGUFValueType.UINT32
STRING = GGUFValueType.STRING


def model(
    architecture: str = "llama",
    *extra: Metadata,
    tensors: Sequence[tuple[str, int]] = (("output_norm.weight", 0),),
    version: int = 3,
    order: str = "<",
) -> bytes:
    """A model of 32 numbers per tensor, given as (name, type), that says just what must be said."""
    keys = [
        scalar("general.architecture", STRING, architecture),
        scalar(f"{architecture}.block_count", U32, 1),
        scalar(f"{architecture}.embedding_length", U32, 32),
        scalar(f"{architecture}.context_length", U32, 32),
        array("tokenizer.ggml.tokens", STRING, ["a", "b"]),
        *extra,
    ]
    return gguf(keys, tensors, version, order)


def gguf(
    keys: Sequence[Metadata], tensors: Sequence[tuple[str, int]], version: int, order: str
) -> bytes:
    parts = [b"GGUF", struct.pack(f"{order}IQQ", version, len(tensors), len(keys))]
    for key in keys:
        parts += [text(key.key), struct.pack("<I", key.kind), key.raw]
    for i, (name, kind) in enumerate(tensors):
        parts += [text(name), struct.pack("<IQIQ", 1, 32, kind, 128 * i)]
    header = b"".join(parts)
    return header + bytes(-len(header) % 32 + 128 * len(tensors))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def split_keys(number: int) -> list[Metadata]:
    return [scalar("split.no", U16, number), scalar("split.count", U16, 3)]


def part(number: int) -> bytes:
    """One of three parts of a split model."""
    keys = split_keys(number)
    return model("llama", *keys) if number == 0 else gguf(keys, [("a.weight", 0)], 3, "<")


def files() -> dict[str, bytes]:
    """Everything, by name."""
    whole = model()
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return {
        "empty.gguf": b"",
        "git-lfs.gguf": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n",
        "web-page.gguf": b"\n<!DOCTYPE html>\n<html><title>Sign in</title></html>\n",
        "server-answer.gguf": b"Invalid username or password.",
        "json-answer.gguf": b'{"error":"Repository not found"}',
        "gzip.gguf": b"\x1f\x8b\x08" + bytes(60),
        "zip.gguf": b"PK\3\4" + bytes(60),
        "zeros.gguf": bytes(600),
        "before-gguf.gguf": b"tjgg\3\0\0\0" + bytes(60),
        "safetensors.gguf": struct.pack("<Q", len(header)) + header + bytes(4),
        "magic-alone.gguf": b"GGUF\3\0\0\0",
        "version-1.gguf": model(version=1),
        "version-4.gguf": model(version=4),
        "big-endian.gguf": model(order=">"),
        "cut-header.gguf": whole[:150],
        "cut-data.gguf": whole[:-40],
        "half.gguf.part": whole[:-40],
        "many-tensors.gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**63 - 1, 1) + bytes(60),
        "many-keys.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63 - 1) + bytes(60),
        "type-4.gguf": model(tensors=[("blk.0.attn_q.weight", 4)]),
        "type-31.gguf": model(tensors=[("blk.0.attn_q.weight", 31)]),
        "type-36.gguf": model(tensors=[("blk.0.attn_q.weight", 36)]),
        "type-77.gguf": model(tensors=[("blk.0.attn_q.weight", 77)]),
        "type-139.gguf": model(tensors=[("blk.0.attn_q.weight", 139)]),
        "type-none.gguf": model(tensors=[("blk.0.attn_q.weight", 2**32 - 1)]),
        "architecture.gguf": model("nobody-knows-this"),
        "no-epsilon.gguf": model("llama"),
        "adapter.gguf": model("llama", scalar("general.type", STRING, "adapter")),
        "projector.gguf": model("clip"),
        "big-00001-of-00003.gguf": part(0),
        "lone-00002-of-00003.gguf": part(1),
        "renamed-part.gguf": part(0),
        "drafter-part.gguf": model("dflash", *split_keys(0)),
        "drafter-incomplete.gguf": model("dflash"),
        "drafter-type-139.gguf": model("dflash", tensors=[("fc.weight", 139)]),
    }


if __name__ == "__main__":
    for name, content in files().items():
        (CORPUS / name).write_bytes(content)
