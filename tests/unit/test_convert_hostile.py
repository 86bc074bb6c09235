"""Damaged and hostile files: a clear error or a correct result, never anything else."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import FIXTURES, TARGET, Drafter  # noqa: E402

from convert import ConversionError, FormatError, convert, describe, fits  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402
from convert.safetensors import Shard, read_json  # noqa: E402

SEED = 20260929
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


def text(value: str) -> bytes:
    return U64.pack(len(value)) + value.encode()


def gguf_bytes(
    *, version: int = 3, n_tensors: int = 0, n_keys: int = 0, rest: bytes = b""
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + rest


def tensor(name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, at: int = 0) -> bytes:
    dims = b"".join(U64.pack(extent) for extent in shape)
    return text(name) + U32.pack(len(shape)) + dims + U32.pack(kind) + U64.pack(at)


HUGE = 2**63 - 1
PAD = b"\0" * 256
POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""
GGUFS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"GGUF\3\0\0\0", "too few"),
    "Git LFS": (POINTER, "git lfs pull"),
    "not a GGUF": (b"PK\3\4" + PAD, "not a GGUF"),
    "version 1": (gguf_bytes(version=1, rest=PAD), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + PAD, "big-endian"),
    "many tensors": (gguf_bytes(n_tensors=HUGE, rest=PAD), "tensors announced"),
    "many keys": (gguf_bytes(n_keys=HUGE, rest=PAD), "keys announced"),
    "counts of all ones": (gguf_bytes(n_tensors=2**64 - 1, n_keys=2**64 - 1), "announced"),
    "long key": (gguf_bytes(n_keys=1, rest=U64.pack(HUGE) + PAD), "claims"),
    "key beyond end": (gguf_bytes(n_keys=1, rest=U64.pack(4096) + PAD), "ends inside"),
    "key not text": (gguf_bytes(n_keys=1, rest=U64.pack(2) + b"\xff\xfe" + PAD), "UTF-8"),
    "unknown type": (gguf_bytes(n_keys=1, rest=text("a") + U32.pack(99) + PAD), "unknown type"),
    "long string": (
        gguf_bytes(n_keys=1, rest=text("a") + U32.pack(8) + U64.pack(HUGE) + PAD),
        "ends inside",
    ),
    "long array": (
        gguf_bytes(n_keys=1, rest=text("a") + U32.pack(9) + U32.pack(4) + U64.pack(HUGE) + PAD),
        "claims",
    ),
    "array beyond end": (
        gguf_bytes(n_keys=1, rest=text("a") + U32.pack(9) + U32.pack(4) + U64.pack(9999) + PAD),
        "ends inside",
    ),
    "strings beyond end": (
        gguf_bytes(n_keys=1, rest=text("a") + U32.pack(9) + U32.pack(8) + U64.pack(9999) + PAD),
        "strings",
    ),
    "nested arrays": (
        gguf_bytes(n_keys=1, rest=text("a") + U32.pack(9) + U32.pack(9) + U64.pack(1) + PAD),
        "array of arrays",
    ),
    "key twice": (gguf_bytes(n_keys=2, rest=2 * (text("a") + U32.pack(0) + b"\1") + PAD), "twice"),
    "tensor twice": (gguf_bytes(n_tensors=2, rest=2 * tensor() + PAD), "twice"),
    "many dimensions": (gguf_bytes(n_tensors=1, rest=tensor(shape=(1,) * 5) + PAD), "dimensions"),
    "huge tensor": (gguf_bytes(n_tensors=1, rest=tensor(shape=(HUGE,) * 4) + PAD), "ends at"),
    "tensor beyond end": (gguf_bytes(n_tensors=1, rest=tensor(at=2**40) + PAD), "ends at"),
    "unknown type beyond end": (
        gguf_bytes(n_tensors=1, rest=tensor(kind=77, at=2**40) + PAD),
        "ends at",
    ),
    "partial block": (gguf_bytes(n_tensors=1, rest=tensor(shape=(33,), kind=2) + PAD), "divide"),
    "misaligned": (gguf_bytes(n_tensors=1, rest=tensor(at=4) + PAD), "aligned"),
    "overlapping": (
        gguf_bytes(n_tensors=2, rest=tensor() + tensor("b", at=64) + 2 * PAD),
        "overlaps",
    ),
    "alignment": (
        gguf_bytes(n_keys=1, rest=text("general.alignment") + U32.pack(4) + U32.pack(3) + PAD),
        "general.alignment",
    ),
}


@pytest.mark.parametrize("case", GGUFS)
def test_hostile_gguf_headers(case: str, tmp_path: Path) -> None:
    content, message = GGUFS[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        GgufFile(path)
    with pytest.raises(FormatError):
        describe(path)
    with pytest.raises(ConversionError):
        convert(FIXTURES / "tiny-plain", path, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["bad.gguf"]


def entry(**changes: Any) -> dict[str, Any]:
    plain = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    return {"a": plain | changes}


DEEP = "[" * 200_000
HEADERS: dict[str, tuple[object, str]] = {
    "a list": ([], "not a JSON object"),
    "nonsense": ("{", "not valid JSON"),
    "deep": (DEEP, "not valid JSON"),
    "entry is a list": ({"a": []}, "lacks"),
    "entry lacks keys": ({"a": {"dtype": "F32"}}, "lacks"),
    "entry has more keys": ({"a": entry()["a"] | {"more": 1}}, "lacks"),
    "dtype": (entry(dtype="F8_E4M3"), "F8_E4M3 needs 4 bytes, has 16"),
    "dtype is a list": (entry(dtype=["F32"]), "dtype"),
    "negative shape": (entry(shape=[-4]), "shape"),
    "fractional shape": (entry(shape=[4.0]), "shape"),
    "true in shape": (entry(shape=[True, 4]), "shape"),
    "long shape": (entry(shape=[1] * 9), "shape"),
    "huge shape": (entry(shape=[2**62, 2**62]), "needs"),
    "shape and size": (entry(shape=[5]), "needs 20 bytes, has 16"),
    "reversed offsets": (entry(data_offsets=[16, 0]), "lies at"),
    "negative offset": (entry(data_offsets=[-16, 0]), "offsets"),
    "offset beyond end": (entry(data_offsets=[16, 32]), "lies at"),
    "huge offset": (entry(data_offsets=[2**64, 2**64 + 16]), "lies at"),
    "shape beyond all": (entry(shape=[10**4000] * 2), "shape"),
    "three offsets": (entry(data_offsets=[0, 8, 16]), "offsets"),
    "overlap": (entry() | {"b": entry()["a"]}, "overlap"),
    "named twice": ('{"a": 1, "a": 2}', "twice"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_hostile_safetensors_headers(case: str, tmp_path: Path) -> None:
    header, message = HEADERS[case]
    raw = (header if isinstance(header, str) else json.dumps(header)).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(U64.pack(len(raw)) + raw + bytes(16))
    with pytest.raises(FormatError, match=message):
        Shard(path)


def test_git_lfs_pointers(tmp_path: Path) -> None:
    path = tmp_path / "pointer"
    path.write_bytes(POINTER)
    with pytest.raises(FormatError, match="git lfs pull"):
        Shard(path)
    with pytest.raises(FormatError, match="git lfs pull"):
        read_json(path, "the configuration")


@pytest.mark.parametrize("length", [0, 7, 8, 100])
def test_truncated_safetensors(length: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((FIXTURES / "tiny-v1" / "model.safetensors").read_bytes()[:length])
    with pytest.raises(FormatError):
        Shard(path)


@pytest.mark.parametrize("n_header", [2**64 - 1, 2**63, 10**8, 17])
def test_header_length_beyond_the_file(n_header: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(U64.pack(n_header) + bytes(16))
    with pytest.raises(FormatError, match="header of"):
        Shard(path)


def attempt(drafter: Path, target: Path, out: Path) -> None:
    """Convert; allow success and ConversionError only, and no leftovers after an error."""
    try:
        convert(drafter, target, out, outtype="f32")
    except ConversionError:
        assert not out.exists()
    assert not [name for name in os.listdir(out.parent) if name.endswith(".tmp")]


def flip(content: bytearray, rng: random.Random, n_header: int) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(n_header)] ^= 1 << rng.randrange(8)


def test_flipped_bits_in_safetensors_headers(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    folder = Drafter.load("tiny-v1").save(tmp_path / "in")
    path = folder / "model.safetensors"
    original = path.read_bytes()
    n_header = 8 + U64.unpack_from(original)[0]
    for _ in range(150):
        content = bytearray(original)
        flip(content, rng, n_header)
        path.write_bytes(content)
        attempt(folder, TARGET, tmp_path / "out.gguf")
        (tmp_path / "out.gguf").unlink(missing_ok=True)


def test_flipped_bits_in_gguf_headers(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    drafter = tmp_path / "drafter.gguf"
    convert(FIXTURES / "tiny-plain", TARGET, drafter)
    for source in (TARGET, drafter):
        with GgufFile(source) as file:
            n_header = min(t.offset for t in file.tensors.values())
        original = source.read_bytes()
        path = tmp_path / "flipped.gguf"
        for number in range(160):
            content = bytearray(original)
            flip(content, rng, n_header)
            if number % 5 == 0:
                del content[rng.randrange(len(content)) :]
            path.write_bytes(content)
            try:
                describe(path)
                fits(drafter, path)
                fits(path, TARGET)
            except ConversionError:
                pass
            if number % 4 == 0:
                attempt(FIXTURES / "tiny-v1", path, tmp_path / "out.gguf")
                (tmp_path / "out.gguf").unlink(missing_ok=True)


def test_flipped_bits_in_configurations(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    folder = tmp_path / "in"
    shutil.copytree(FIXTURES / "tiny-softcap", folder)
    path = folder / "config.json"
    original = path.read_bytes()
    for _ in range(150):
        content = bytearray(original)
        flip(content, rng, len(content))
        path.write_bytes(content)
        attempt(folder, TARGET, tmp_path / "out.gguf")
        (tmp_path / "out.gguf").unlink(missing_ok=True)


def scramble(value: Any, rng: random.Random) -> Any:
    return rng.choice(
        (None, True, -1, 0, 2**70, 1e400, float("nan"), "", "x", [], {}, [value], [[]])
    )


def test_scrambled_configuration_values(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for name in ("tiny-softcap", "tiny-window"):
        for speculators in (False, True):
            base = Drafter.load(name)
            if speculators:
                base.config["dflash_config"].pop("output_multiplier", None)
                base = base.to_speculators()
            folder = base.save(tmp_path / f"{name}{speculators}")
            for _ in range(40):
                changed = json.loads(json.dumps(base.config))
                sections = [v for v in changed.values() if isinstance(v, dict) and v]
                section = rng.choice([changed, changed, *sections])
                key = rng.choice(list(section))
                section[key] = scramble(section[key], rng)
                (folder / "config.json").write_text(json.dumps(changed))
                attempt(folder, TARGET, tmp_path / "out.gguf")
                (tmp_path / "out.gguf").unlink(missing_ok=True)
