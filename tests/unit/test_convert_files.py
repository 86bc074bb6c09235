"""Files in every state that downloads, links and other programs leave them in: what they are, and
what to do about it, is in the message."""

from __future__ import annotations

import errno
import gzip
import mmap
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable
from ctypes import c_int, c_int64, c_size_t
from pathlib import Path

import pytest
from gguf.constants import GGUFValueType
from llama_cpp._ggml import libggml

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

import write_corpus  # noqa: E402
from convert_support import FIXTURES, TARGET, Drafter  # noqa: E402

from convert import ConversionError, FormatError, convert, describe, fits  # noqa: E402
from convert.ggml_types import GgmlType  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402
from convert.gguf_write import Metadata, TensorHeader, padding, scalar, write_header  # noqa: E402
from convert.target import copy_value  # noqa: E402

PLAIN = FIXTURES / "tiny-plain"
CORPUS = write_corpus.CORPUS
N_TYPES = 43  # GGML_TYPE_COUNT
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Not found</title></head></html>\n"


def target_keys() -> list[Metadata]:
    with GgufFile(TARGET) as file:
        return [copy_value(file, key) for key in file.values]


def write_target(path: Path, *extra: Metadata, kind: int = 0, n_bytes: int = 64 * 4) -> Path:
    """The tiny target's header, and one tensor of any type and size."""
    with path.open("wb") as file:
        # written as F32, because the type may be one whose size nobody knows
        write_header(
            file, [*target_keys(), *extra], [TensorHeader("some.weight", (64,), GgmlType(0))]
        )
        file.write(bytes(n_bytes) + padding(n_bytes))
    head = path.read_bytes()
    entry = b"some.weight" + struct.pack("<IQI", 1, 64, 0)
    assert head.count(entry) == 1
    path.write_bytes(head.replace(entry, b"some.weight" + struct.pack("<IQI", 1, 64, kind)))
    return path


def test_sizes_are_ggmls() -> None:
    block, size = libggml.ggml_blck_size, libggml.ggml_type_size
    block.argtypes, block.restype = [c_int], c_int64
    size.argtypes, size.restype = [c_int], c_size_t
    for number in range(N_TYPES):
        kind = GgmlType(number)
        if kind.is_known:
            assert (kind.block, kind.block_bytes) == (block(number), size(number)), kind.name
        else:
            assert block(number) == 0, f"ggml has type {number}"
    assert not GgmlType(N_TYPES).is_known


@pytest.mark.parametrize("number", [42, 41, 40, 34])
def test_types_that_the_gguf_package_may_lack(number: int, tmp_path: Path) -> None:
    kind = GgmlType(number)
    path = tmp_path / "t.gguf"
    n_bytes = kind.n_bytes((256, 3))
    with path.open("wb") as file:
        write_header(file, target_keys(), [TensorHeader("m", (256, 3), kind)])
        file.write(bytes(range(n_bytes % 256)) + bytes(n_bytes - n_bytes % 256))
        file.write(padding(n_bytes))
    found = describe(path)
    assert (found.types, found.problem) == ({kind.name: 1}, "")
    with GgufFile(path) as read:
        assert read.tensors["m"].n_bytes == n_bytes
        assert len(read.row_bytes("m", [0, 2])) == n_bytes // 3 * 2
    convert(PLAIN, path, tmp_path / "out.gguf", dry_run=True)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (139, r"IQ4_K of ik_llama\.cpp"),
        (202, r"ik_llama\.cpp's"),
        (31, r"Q4_0_4_4, which llama\.cpp no longer has\)"),
        (36, r"IQ4_NL_4_4, which llama\.cpp no longer has, or bitnet\.cpp's own"),
        (4, "Q4_2, which"),
        (77, r"another program's, or a newer llama\.cpp's"),
        (2**32 - 1, "unknown"),
    ],
)
def test_types_that_llama_cpp_does_not_have(number: int, words: str, tmp_path: Path) -> None:
    """Headers are read: only what needs the weights is refused, and `inspect` and `fits` say so."""
    path = write_target(tmp_path / "t.gguf", kind=number, n_bytes=999)
    message = rf"tensor 'some\.weight' has type {number} \(.*{words}.*quantise .* again"
    found = describe(path)
    assert found.n_embd == 64
    out = tmp_path / "out.gguf"
    report = convert(PLAIN, path, out)
    for text in (found.problem, report.decisions[-1], *fits(out, path)):
        assert re.search(message, text)
    with GgufFile(path) as file, pytest.raises(FormatError, match=message):
        file.row_bytes("some.weight", [0])


def with_version(version: bytes) -> bytes:
    return b"GGUF" + version + TARGET.read_bytes()[8:]


STATES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty: download it again"),
    "Git LFS": (POINTER, "Git LFS pointer.*git lfs pull"),
    "web page": (PAGE, "a web page.*/resolve/"),
    "answer": (b"Entry not found", r"text \('Entry not found'\).*server"),
    "gzip": (gzip.compress(TARGET.read_bytes(), 1), "compressed with gzip: unpack it"),
    "zip": (b"PK\3\4" + bytes(99), "ZIP archive"),
    "zeros": (bytes(4096), "zeros.*unfinished download"),
    "before GGUF": (b"tjgg\3\0\0\0" + bytes(99), "from before GGUF"),
    "safetensors": ((PLAIN / "model.safetensors").read_bytes(), "a safetensors file.*folder"),
    "magic alone": (b"GGUF", "4 bytes are too few.*download it again"),
    "version 1": (with_version(struct.pack("<I", 1)), "version 1 .*current llama.cpp"),
    "version 4": (with_version(struct.pack("<I", 4)), "version 4 is newer.*update pydflash2"),
    "big-endian": (with_version(struct.pack(">I", 3)), "big-endian.*gguf-convert-endian"),
    "cut in the header": (TARGET.read_bytes()[:3000], "incomplete: download"),
    "cut in the data": (TARGET.read_bytes()[:-99], "ends at byte.*the file at.*incomplete"),
}


@pytest.mark.parametrize("state", STATES)
def test_states_of_a_gguf(state: str, tmp_path: Path) -> None:
    content, message = STATES[state]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    for read in (
        lambda: describe(path),
        lambda: fits(path, TARGET),
        lambda: convert(PLAIN, path, tmp_path / "out.gguf"),
    ):
        with pytest.raises(FormatError, match=rf"(?s)model\.gguf: .*{message}"):
            read()


def corpus() -> list[list[str]]:
    """Files that once failed, and words of the answer to each."""
    lines = (CORPUS / "corpus.txt").read_text().splitlines()
    return [line.split(" | ") for line in lines if line and not line.startswith("#")]


def test_the_corpus_is_listed_and_as_written() -> None:
    assert {row[0] for row in corpus()} == {path.name for path in CORPUS.glob("*.gguf*")}
    for name, content in write_corpus.files().items():
        assert (CORPUS / name).read_bytes() == content, name


@pytest.mark.parametrize("row", corpus(), ids=lambda row: row[0])
def test_the_corpus(row: list[str]) -> None:
    name, _, _, words = row
    try:
        answer = describe(CORPUS / name).problem or "-"
    except ConversionError as error:
        answer = str(error)
    assert words in answer


@pytest.mark.parametrize("name", ["model.gguf.incomplete", "model.gguf.part", "m.crdownload"])
def test_names_of_unfinished_downloads(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(TARGET.read_bytes()[:50_000])
    with pytest.raises(FormatError, match="the download has not finished"):
        describe(path)
    whole = tmp_path / "other.gguf"
    whole.write_bytes(TARGET.read_bytes()[:50_000])
    (tmp_path / "other.gguf.aria2").touch()
    with pytest.raises(FormatError, match=r"other\.gguf\.aria2 beside it"):
        describe(whole)
    downloads = tmp_path / ".cache" / "huggingface" / "download"
    downloads.mkdir(parents=True)
    (downloads / "third.gguf.0123.incomplete").touch()
    with pytest.raises(FormatError, match=r"no such file .*\.incomplete file in \.cache"):
        describe(tmp_path / "third.gguf")


def test_paths_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.gguf"
    link = tmp_path / "link.gguf"
    link.symlink_to("blobs/0123")
    for target, message in (
        (link, "a link to blobs/0123, which is not there: download it again"),
        (Path("somebody/some-model-GGUF"), "hub.*hf download somebody/some-model-GGUF"),
        (Path("somebody/some-model:Q4_K_M"), "`hf download somebody/some-model`"),
        (Path("https://example.com/model.gguf"), "an address: nothing is downloaded"),
        (Path("~/model.gguf"), "only shells know what ~ stands for"),
        (tmp_path / "none.gguf", "no such file or folder"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert(PLAIN, target, out)
        with pytest.raises(FormatError, match=message):
            describe(target)
    shutil.copy(TARGET, tmp_path / "model.gguf")
    with pytest.raises(ConversionError, match=r"folder: give the GGUF file.*model\.gguf"):
        GgufFile(tmp_path)


def test_paths_that_are_no_drafter_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "models--somebody--drafter"
    revision = cache / "snapshots" / ("0" * 40)
    shutil.copytree(PLAIN, revision)
    weights = revision / "model.safetensors"
    blob = cache / "blobs" / "1234"
    blob.parent.mkdir()
    weights.rename(blob)
    weights.symlink_to(blob)
    out = tmp_path / "out.gguf"
    convert(revision, TARGET, out)  # a link into the cache
    for folder, message in (
        (cache, rf"hub's cache of a model: give the folder in it, .*{revision.name}"),
        (revision / "config.json", "a file: give the folder that it is in"),
        (out, "a GGUF file, which needs no conversion"),
        (Path("somebody/drafter"), "hub.*hf download somebody/drafter"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert(folder, TARGET, tmp_path / "other.gguf")
    with pytest.raises(FormatError, match=r"folder of GGUF files: give .* \(out\.gguf\)"):
        describe(tmp_path)
    blob.rename(blob.with_suffix(".incomplete"))
    with pytest.raises(ConversionError, match=r"a link to .*1234, which is not there"):
        convert(revision, TARGET, tmp_path / "other.gguf")
    with pytest.raises(ConversionError, match=r"a link to .*1234, which is not there"):
        describe(revision)


def split(path: Path, number: int, count: int) -> Path:
    """A part of a split target; only the first says what the model is."""
    part = path.with_name(f"{path.stem}-{number + 1:05}-of-{count:05}.gguf")
    numbers = [
        scalar("split.no", GGUFValueType.UINT16, number),
        scalar("split.count", GGUFValueType.UINT16, count),
    ]
    with part.open("wb") as file:
        keys = target_keys() if number == 0 else []
        header = TensorHeader(f"part{number}.weight", (64,), GgmlType(0))
        write_header(file, [*keys, *numbers], [header])
        file.write(bytes(header.n_bytes))
    return part


def test_parts_of_split_models(tmp_path: Path) -> None:
    first, second, third = (split(tmp_path / "big.gguf", i, 3) for i in range(3))
    found = describe(first)
    assert found.n_tensors == 3
    assert found.n_bytes == sum(part.stat().st_size for part in (first, second, third))
    out = tmp_path / "out.gguf"
    convert(PLAIN, first, out)
    for read in (describe, lambda path: convert(PLAIN, path, tmp_path / "other.gguf")):
        with pytest.raises(
            FormatError, match=r"part 2 of 3 .*give the first part, big-00001-of-00003\.gguf"
        ):
            read(second)
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(third, renamed)
    with pytest.raises(FormatError, match=r"part 3 of 3 .*name ends in -00001-of-00003\.gguf"):
        describe(renamed)
    whole = third.read_bytes()
    third.write_bytes(whole[:-50])
    with pytest.raises(FormatError, match=r"big-00003-of-00003\.gguf: tensor.*incomplete"):
        describe(first)
    third.unlink()
    with pytest.raises(FormatError, match=r"big-00003-of-00003\.gguf missing \(1 of 3 parts\)"):
        fits(out, first)


SHARDS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "Git LFS": (lambda _, shard: shard.write_bytes(POINTER), "Git LFS pointer.*git lfs pull"),
    "web page": (lambda _, shard: shard.write_bytes(PAGE), "a web page"),
    "gzip": (lambda _, shard: shard.write_bytes(gzip.compress(shard.read_bytes())), "gzip"),
    "empty": (lambda _, shard: shard.write_bytes(b""), "0 bytes are too few.*Download it again"),
    "cut": (
        lambda _, shard: shard.write_bytes(shard.read_bytes()[:-40]),
        "lies at.*incomplete.*Download it again",
    ),
    "GGUF": (lambda _, shard: shard.write_bytes(TARGET.read_bytes()), "but a GGUF file"),
    "missing": (lambda _, shard: shard.unlink(), r"00002-of-00002\.safetensors.*\(1 of 2\)"),
    "unfinished": (
        lambda _, shard: shard.rename(shard.with_name(shard.name + ".part")),
        r"safetensors\.part beside it",
    ),
    "broken link": (
        lambda folder, shard: (shard.unlink(), shard.symlink_to(folder / "blob")),
        "is a link to a file that is not there",
    ),
    "stale index": (
        lambda folder, shard: [
            *(path.unlink() for path in folder.glob("w-*")),
            shutil.copy(PLAIN / "model.safetensors", folder),
        ],
        r"model\.safetensors is there.*index is left over.*delete it",
    ),
    "index Git LFS": (
        lambda folder, _: (folder / "model.safetensors.index.json").write_bytes(POINTER),
        "index is not valid JSON .*Git LFS pointer",
    ),
    "index cut": (
        lambda folder, _: os.truncate(folder / "model.safetensors.index.json", 50),
        "index is not valid JSON",
    ),
    "index missing": (
        lambda folder, _: (folder / "model.safetensors.index.json").unlink(),
        "several weight files.*Download the index",
    ),
    "config web page": (
        lambda folder, _: (folder / "config.json").write_bytes(PAGE),
        "configuration is not valid JSON .*a web page",
    ),
    "other weights": (
        lambda folder, _: [
            *(path.unlink() for path in folder.glob("*.safetensors*")),
            (folder / "pytorch_model.bin").touch(),
        ],
        r"no \.safetensors weights found \(pytorch_model\.bin found\)",
    ),
}


@pytest.mark.parametrize("state", SHARDS)
def test_states_of_a_checkpoint(state: str, tmp_path: Path) -> None:
    change, message = SHARDS[state]
    folder = Drafter.load("tiny-plain").save_shards(tmp_path / "in", "w", 2)
    change(folder, folder / "w-00002-of-00002.safetensors")
    with pytest.raises(ConversionError, match=f"(?s){message}"):
        convert(folder, TARGET, tmp_path / "out.gguf")
    if state != "other weights":  # a folder without weights can be described
        with pytest.raises(ConversionError, match=f"(?s){message}"):
            describe(folder)
    assert os.listdir(tmp_path) == ["in"]


def test_a_tokenizer_that_is_a_pointer(tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(FIXTURES / "tiny-target" / "hf", target)
    (target / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(ConversionError, match=r"tokenizer is not valid JSON .*git lfs pull"):
        convert(PLAIN, target, tmp_path / "out.gguf")


def test_file_systems_that_cannot_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read then, and the same comes out."""
    convert(PLAIN, TARGET, tmp_path / "mapped.gguf", draft_vocab=40)
    real, refused = mmap.mmap, []

    def refuse(descriptor: int, length: int, **options: int) -> mmap.mmap:
        if descriptor >= 0:
            refused.append(descriptor)
            raise OSError(errno.ENODEV, "No such device")
        return real(descriptor, length, **options)

    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr("convert.pages._PIECE", 1000)
    convert(PLAIN, TARGET, tmp_path / "read.gguf", draft_vocab=40)
    assert (tmp_path / "read.gguf").read_bytes() == (tmp_path / "mapped.gguf").read_bytes()
    assert describe(TARGET).n_tensors > 0
    assert len(refused) > 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none(value: float, tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    name = "layers.0.mlp.up_proj.weight"
    drafter.tensors[name] = drafter.tensors[name].copy()
    drafter.tensors[name][3, 4] = value
    with pytest.raises(ConversionError, match=rf"tensor '{name}' holds NaN or infinite"):
        convert(drafter.save(tmp_path / "in"), TARGET, tmp_path / "out.gguf")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    source = FIXTURES / "tiny-plain"
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file.gguf"
    os.mkfifo(pipe)
    with pytest.raises(ConversionError, match="not a regular file"):
        convert(source, TARGET, pipe)
    assert pipe.is_fifo()
    file.write_bytes(b"old")
    link.symlink_to(file)
    convert(source, TARGET, link)
    assert link.is_symlink()
    assert file.read_bytes()[:4] == b"GGUF"


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for call in (lambda: GgufFile(pipe), lambda: describe(pipe)):
        with pytest.raises(FormatError, match="not a regular file"):
            call()
    with pytest.raises(ConversionError, match="not a regular file"):
        convert(pipe, TARGET, tmp_path / "out.gguf")


def test_numbers_beyond_all_floats(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    drafter.config["rms_norm_eps"] = 10**400
    folder = drafter.save(tmp_path / "hf")
    with pytest.raises(ConversionError, match=r"is 1000\d*, not a finite"):
        convert(folder, TARGET, tmp_path / "out.gguf")
