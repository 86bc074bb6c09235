"""Draft vocabularies: which tokens are kept, where their rows come from, and what is refused."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from gguf.constants import GGUFValueType

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "tools")]

from convert_support import (  # noqa: E402
    DRAFTERS,
    FIXTURES,
    TARGET,
    Array,
    Drafter,
    read_safetensors,
    to_bf16,
    write_safetensors,
)

from convert import ConversionError, convert, describe  # noqa: E402
from convert.dtypes import to_float32  # noqa: E402
from convert.ggml_types import GgmlType  # noqa: E402
from convert.gguf_read import GgufFile  # noqa: E402
from convert.gguf_write import (  # noqa: E402
    Metadata,
    TensorHeader,
    array,
    padding,
    scalar,
    write_header,
)
from convert.target import copy_value  # noqa: E402
from convert.vocabulary import choose_vocabulary  # noqa: E402

PLAIN = FIXTURES / "tiny-plain"
OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"
N_VOCAB, N_EMBD, TOP_K = 160, 64, 4
EOS = 2


def write_gguf(
    path: Path,
    keys: list[Metadata],
    tensors: Mapping[str, tuple[Kind | GgmlType, Array, tuple[int, ...]]],
) -> Path:
    """Write tensors given as (type, raw bytes, shape innermost first)."""
    headers = [
        TensorHeader(name, shape, GgmlType(kind)) for name, (kind, _, shape) in tensors.items()
    ]
    with path.open("wb") as file:
        write_header(file, keys, headers)
        for header, (_, data, _) in zip(headers, tensors.values(), strict=True):
            assert data.nbytes == header.n_bytes
            file.write(data.tobytes() + padding(data.nbytes))
    return path


def make_target(
    path: Path,
    *,
    kind: Kind = Kind.F32,
    tied: bool = False,
    n_padding: int = 0,
    scale: bool = False,
    parts: int = 1,
) -> Path:
    """A target with the fixture's keys and a head of any type, tied, padded or split into parts."""
    random = np.random.default_rng(3)
    tensors: dict[str, tuple[Kind, Array, tuple[int, ...]]] = {}
    for name in (EMBEDDINGS, OUTPUT)[: 1 if tied else 2]:
        values = random.standard_normal((N_VOCAB + n_padding, N_EMBD)).astype(np.float32)
        packed = np.ascontiguousarray(gguf.quants.quantize(values, kind))
        tensors[name] = (kind, packed, (N_EMBD, N_VOCAB + n_padding))
    if scale:
        tensors["output.scale"] = (Kind.F32, np.ones(1, np.float32), (1,))
    with GgufFile(TARGET) as file:
        keys = [copy_value(file, key) for key in file.values]
    if parts == 1:
        return write_gguf(path, keys, tensors)
    names = list(tensors)
    for i in range(parts):
        split = [
            scalar("split.no", GGUFValueType.UINT16, i),
            scalar("split.count", GGUFValueType.UINT16, parts),
        ]
        part = path.with_name(f"{path.stem}-{i + 1:05}-of-{parts:05}.gguf")
        held = {name: tensors[name] for name in names[i::parts]}
        write_gguf(part, [*(keys if i == 0 else []), *split], held)
    return path.with_name(f"{path.stem}-00001-of-{parts:05}.gguf")


def read_head(path: Path) -> tuple[Array, Array]:
    """Raw rows of output.weight, and d2t, by an independent reader."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    table = tensors["d2t"]
    assert table.tensor_type is Kind.I64
    rows = tensors[OUTPUT].data
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1), np.array(table.data)


def raw_rows(path: Path, name: str) -> Array:
    data = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}[name]
    return np.ascontiguousarray(data).view(np.uint8).reshape(len(data), -1)


def kept_by(**options: Any) -> list[int]:
    return sorted(convert(PLAIN, TARGET, "unused", dry_run=True, **options).head.vocabulary.ids)


# -- Rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rows_are_the_targets_byte_for_byte(drafter: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    counts = {100: 7, 30: 9, 31: 9, 159: 1}
    report = convert(FIXTURES / drafter, TARGET, out, draft_vocab=20, vocab_counts=counts)
    rows, table = read_head(out)
    assert table.shape == (20,)
    assert (np.diff(table) > 0).all()
    assert {EOS, 30, 31, 100, 159} <= set(table)
    np.testing.assert_array_equal(rows, raw_rows(TARGET, OUTPUT)[table])
    assert report.errors[OUTPUT] == report.errors["d2t"] == 0
    assert report.head is not None
    assert report.head.n_bytes == rows.nbytes


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_1, Kind.Q4_0])
def test_rows_of_any_type(
    kind: Kind, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.head._CHUNK_ROWS", 8)  # the last chunk is a part of one
    target = make_target(tmp_path / "target.gguf", kind=kind, tied=tied)
    out = tmp_path / "out.gguf"
    report = convert(PLAIN, target, out, outtype="q4_0", draft_vocab=33)
    rows, table = read_head(out)
    assert report.head is not None
    assert report.head.source.kind == kind
    name = EMBEDDINGS if tied else OUTPUT
    assert name in report.head.source.place
    np.testing.assert_array_equal(rows, raw_rows(target, name)[table])


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q4_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ2_XXS])
def test_rows_of_large_blocks(kind: Kind, tmp_path: Path) -> None:
    """Types that the fixtures' short rows cannot have, with any bytes."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 256, (50, 2 * block_bytes)).astype(np.uint8)
    path = write_gguf(tmp_path / "t.gguf", [], {"m": (kind, data, (2 * block, 50))})
    with GgufFile(path) as file:
        assert file.row_bytes("m", [0, 7, 49]) == data[[0, 7, 49]].tobytes()


def test_rows_of_a_type_that_the_gguf_package_may_lack(tmp_path: Path) -> None:
    kind = GgmlType(42)  # Q2_0: a row is one block
    data = np.random.default_rng(2).integers(0, 256, (N_VOCAB, kind.block_bytes)).astype(np.uint8)
    with GgufFile(TARGET) as file:
        keys = [copy_value(file, key) for key in file.values]
    target = write_gguf(tmp_path / "t.gguf", keys, {OUTPUT: (kind, data, (N_EMBD, N_VOCAB))})
    out = tmp_path / "out.gguf"
    report = convert(PLAIN, target, out, draft_vocab=20)
    assert report.head is not None
    with GgufFile(out) as file:
        assert file.tensors[OUTPUT].kind.name == "Q2_0"
        assert file.tensor_bytes(OUTPUT) == data[report.head.vocabulary.ids].tobytes()


def test_rows_beyond_the_vocabulary_are_no_tokens(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target.gguf", n_padding=32)
    convert(PLAIN, target, tmp_path / "out.gguf", draft_vocab=N_VOCAB - 1)
    rows, table = read_head(tmp_path / "out.gguf")
    assert table.max() < N_VOCAB
    np.testing.assert_array_equal(rows, raw_rows(target, OUTPUT)[table])


def test_the_rest_of_the_file_is_unchanged(tmp_path: Path) -> None:
    convert(PLAIN, TARGET, tmp_path / "full.gguf")
    convert(PLAIN, TARGET, tmp_path / "out.gguf", draft_vocab=40)
    with GgufFile(tmp_path / "full.gguf") as full, GgufFile(tmp_path / "out.gguf") as reduced:
        assert set(reduced.tensors) - set(full.tensors) == {OUTPUT, "d2t"}
        for name in full.tensors:
            assert full.tensor_bytes(name) == reduced.tensor_bytes(name)
        added = "dflash2.converter.draft_vocabulary"
        assert set(reduced.values) - set(full.values) == {added}
        assert reduced.get(added) == "40 of 160 tokens, by the tokenizer's order"
        for key in set(full.values) - {"general.size_label"}:
            assert full.raw_value(key) == reduced.raw_value(key)


def test_output_is_deterministic(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        convert(PLAIN, TARGET, tmp_path / name, draft_vocab=50, vocab_counts={9: 1, 8: 1})
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


# -- Where the head is -----------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_found_in_any_part(tied: bool, tmp_path: Path) -> None:
    target = make_target(tmp_path / "big.gguf", parts=3, tied=tied)
    holder = tmp_path / f"big-0000{1 if tied else 2}-of-00003.gguf"
    convert(PLAIN, target, tmp_path / "out.gguf", draft_vocab=16)
    rows, table = read_head(tmp_path / "out.gguf")
    name = EMBEDDINGS if tied else OUTPUT
    np.testing.assert_array_equal(rows, raw_rows(holder, name)[table])


def test_incomplete_splits_are_refused(tmp_path: Path) -> None:
    target = make_target(tmp_path / "big.gguf", parts=2)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(target.read_bytes())
    with pytest.raises(
        ConversionError, match=r"its name does not end in.*llama-gguf-split --merge"
    ):
        convert(PLAIN, renamed, tmp_path / "out.gguf", draft_vocab=16)
    (tmp_path / "big-00002-of-00002.gguf").unlink()
    message = r"big-00002-of-00002\.gguf missing \(1 of 2 parts\).*llama-gguf-split --merge"
    with pytest.raises(ConversionError, match=message):
        convert(PLAIN, target, tmp_path / "out.gguf", draft_vocab=16)
    convert(PLAIN, target, tmp_path / "out.gguf")  # which needs no head


def test_heads_that_cannot_be_taken(tmp_path: Path) -> None:
    target = make_target(tmp_path / "scaled.gguf", scale=True)
    with pytest.raises(ConversionError, match=r"scale of its own.*leave --draft-vocab out"):
        convert(PLAIN, target, tmp_path / "out.gguf", draft_vocab=16)
    with GgufFile(TARGET) as file:
        keys = [copy_value(file, key) for key in file.values]
    nothing = write_gguf(tmp_path / "nothing.gguf", keys, {})
    with pytest.raises(ConversionError, match=r"neither output\.weight nor token_embd\.weight"):
        convert(PLAIN, nothing, tmp_path / "out.gguf", draft_vocab=16)
    short = np.zeros((100, N_EMBD), np.float32)
    held = {OUTPUT: (Kind.F32, short, (N_EMBD, 100))}
    with pytest.raises(ConversionError, match=r"shape \[100, 64\], expected at least 160 rows"):
        convert(
            PLAIN,
            write_gguf(tmp_path / "short.gguf", keys, held),
            tmp_path / "out.gguf",
            draft_vocab=16,
        )
    assert not (tmp_path / "out.gguf").exists()


def hf_target(
    folder: Path, tensors: Mapping[str, Array], dtypes: dict[str, str] | None = None, **changes: Any
) -> Path:
    """A target folder of 160 tokens with a byte-level tokenizer and some weights."""
    folder.mkdir()
    config = json.loads((FIXTURES / "tiny-target" / "hf" / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (folder / "config.json").write_text(json.dumps(config | changes))
    tokenizer = {
        "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(158)}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [{"id": 158, "content": "<|im_end|>", "special": True}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    write_safetensors(folder / "model.safetensors", tensors, dtypes)
    return folder


HEAD = np.random.default_rng(5).standard_normal((N_VOCAB, N_EMBD)).astype(np.float32)
OTHER = np.zeros((N_VOCAB, N_EMBD), np.float32)


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        ({"lm_head.weight": HEAD, "model.embed_tokens.weight": OTHER}, {}),
        ({"language_model.lm_head.weight": HEAD}, {"tie_word_embeddings": False}),
        ({"model.embed_tokens.weight": HEAD}, {}),
        (
            {"lm_head.weight": OTHER, "model.embed_tokens.weight": HEAD},
            {"tie_word_embeddings": True},
        ),
    ],
    ids=["untied", "nested", "tied by default", "tied"],
)
def test_rows_of_a_target_folder(
    names: dict[str, Array], changes: dict[str, Any], tmp_path: Path
) -> None:
    target = hf_target(tmp_path / "target", names, **changes)
    out = tmp_path / "out.gguf"
    report = convert(PLAIN, target, out, outtype="f32", draft_vocab=20)
    rows, table = read_head(out)
    np.testing.assert_array_equal(rows.view(np.float32), HEAD[table])
    assert 158 in table
    assert report.head is not None
    assert str(target) in report.head.source.place


@pytest.mark.parametrize(
    ("outtype", "kind"), [("bf16", "BF16"), ("q8_0", "Q8_0"), ("q4_0", "Q8_0"), ("f16", "F16")]
)
def test_rows_of_a_target_folder_have_a_type_that_fits(
    outtype: str, kind: str, tmp_path: Path
) -> None:
    target = hf_target(tmp_path / "target", {"lm_head.weight": to_bf16(HEAD)})
    report = convert(PLAIN, target, tmp_path / "out.gguf", outtype=outtype, draft_vocab=20)
    assert report.head is not None
    assert report.head.source.kind.name == kind
    assert 0 <= report.errors[OUTPUT] < 0.02
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    written = gguf.quants.dequantize(tensors[OUTPUT].data, tensors[OUTPUT].tensor_type)
    np.testing.assert_allclose(written, HEAD[np.array(tensors["d2t"].data)], atol=0.03)


def test_rows_of_a_target_of_8_bit_floats(tmp_path: Path) -> None:
    name = "lm_head.weight"
    codes = np.random.default_rng(6).integers(0, 120, (N_VOCAB, N_EMBD)).astype(np.uint8)
    scale = np.random.default_rng(7).uniform(0.01, 0.02, (N_VOCAB // 32, 2)).astype(np.float32)
    target = hf_target(
        tmp_path / "target",
        {name: codes, f"{name}_scale_inv": scale},
        {name: "F8_E4M3"},
        quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]},
    )
    convert(PLAIN, target, tmp_path / "out.gguf", outtype="f32", draft_vocab=20)
    rows, table = read_head(tmp_path / "out.gguf")
    head = to_float32(codes, "F8_E4M3") * np.kron(scale, np.ones((32, 32), np.float32))
    np.testing.assert_array_equal(rows.view(np.float32), head[table])


def test_target_folders_without_a_clear_head(tmp_path: Path) -> None:
    for i, (tensors, changes) in enumerate(
        (
            ({"norm.weight": HEAD[0]}, {}),
            ({"model.embed_tokens.weight": HEAD}, {"tie_word_embeddings": False}),
            ({"a.lm_head.weight": HEAD, "b.lm_head.weight": HEAD}, {}),
        )
    ):
        target = hf_target(tmp_path / f"target{i}", tensors, **changes)
        with pytest.raises(ConversionError, match=r"look like the target's head.*target's GGUF"):
            convert(PLAIN, target, tmp_path / "out.gguf", draft_vocab=20)


@pytest.mark.parametrize("names", [("lm_head",), ("embed_tokens",), ("lm_head", "embed_tokens")])
def test_a_head_that_the_drafter_brings(names: tuple[str, ...], tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-plain")
    for i, name in enumerate(names):
        drafter.tensors[f"{name}.weight"] = HEAD + np.float32(i)
    out = tmp_path / "out.gguf"
    report = convert(drafter.save(tmp_path / "in"), TARGET, out, outtype="f32", draft_vocab=20)
    rows, table = read_head(out)
    np.testing.assert_array_equal(rows.view(np.float32), HEAD[table])
    assert [plan.name for plan in report.tensors].count(OUTPUT) == 1
    with GgufFile(out) as file:
        assert (EMBEDDINGS in file.tensors) == ("embed_tokens" in names)


def test_a_copy_of_the_targets_head_is_not_used(tmp_path: Path) -> None:
    folder = Drafter.load("tiny-plain").to_speculators().save(tmp_path / "in")
    convert(folder, TARGET, tmp_path / "out.gguf", draft_vocab=20)
    rows, table = read_head(tmp_path / "out.gguf")
    np.testing.assert_array_equal(rows, raw_rows(TARGET, OUTPUT)[table])


def test_a_drafter_with_a_draft_vocabulary_keeps_it(tmp_path: Path) -> None:
    drafter = Drafter.load("tiny-v1").to_speculators()
    drafter.config["draft_vocab_size"] = 32
    drafter.tensors["lm_head.weight"] = HEAD[:32]
    drafter.tensors["d2t"] = np.arange(32, dtype=np.int64)
    folder = drafter.save(tmp_path / "in")
    with pytest.raises(ConversionError, match=r"trained with a draft vocabulary of 32.*leave"):
        convert(folder, TARGET, tmp_path / "out.gguf", draft_vocab=16)


# -- The choice ------------------------------------------------------------------------------------


def tokenizer(
    texts: list[str], kinds: list[int] | None = None, template: str = "", **ids: int
) -> tuple[Metadata, ...]:
    """A tokenizer block; ids: eos=3 and the like."""
    entries = [array("tokenizer.ggml.tokens", GGUFValueType.STRING, texts)]
    if kinds is not None:
        entries.append(array("tokenizer.ggml.token_type", GGUFValueType.INT32, kinds))
    if template:
        entries.append(scalar("tokenizer.chat_template", GGUFValueType.STRING, template))
    for name, token in ids.items():
        key = f"tokenizer.ggml.{name}_token_id"
        entries.append(scalar(key, GGUFValueType.UINT32, token))
    return tuple(entries)


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEXTS = [
    "<unk>",
    "<s>",
    "</s>",
    "<|end|>",
    "<x>",
    "[unused]",
    "<0x0A>",
    "the",
    "of",
    "e",
    "é",
    "é!",
]
KINDS = [UNKNOWN, CONTROL, CONTROL, CONTROL, USER, UNUSED, BYTE, *[NORMAL] * 5]


def choose(n: int, counts: dict[int, int] | None = None, top_k: int = 1, **block: Any) -> list[int]:
    entries = tokenizer(TEXTS, KINDS, **block)
    chosen = choose_vocabulary(entries, len(TEXTS), n, counts, top_k)
    return chosen.ids.tolist()


def test_tokenizer_order() -> None:
    """Single ASCII characters first, then what text is made of, control and unused tokens last."""
    order = [9, 4, 6, 7, 8, 10, 11, 0, 1, 2, 3]
    for n in range(1, len(TEXTS)):
        assert choose(n) == sorted(order[:n])


def test_counts_come_first_and_ties_keep_the_lower_id() -> None:
    counts = {11: 5, 8: 2, 7: 2, 5: 1, 10: 0}
    assert choose(1, counts) == [11]
    assert choose(2, counts) == [7, 11]
    assert choose(3, counts) == [7, 8, 11]
    assert choose(4, counts) == [5, 7, 8, 11]  # counted, so used after all
    assert choose(5, counts) == [5, 7, 8, 9, 11]  # and then in the tokenizer's order


def test_ends_are_always_kept() -> None:
    assert choose(2, {7: 9, 8: 8}, eos=2, eot=3) == [2, 3]
    assert choose(3, {7: 9, 8: 8}, eos=2, eom=3) == [2, 3, 7]
    # ids that are no tokens are ignored, as are tokens that nothing ends with
    assert choose(3, {7: 9, 8: 8}, eos=2**32 - 1, bos=1, unknown=0) == [7, 8, 9]


def test_special_tokens_of_the_template_are_always_kept() -> None:
    template = "{{ 'the' }}<|end|>{{ eos_token }}<x>"
    assert choose(2, {7: 9}, template=template) == [3, 4]  # "the" is spelled there too, by chance
    assert choose(4, {7: 9}, template=template, eos=2) == [2, 3, 4, 7]


def test_a_tokenizer_without_types() -> None:
    entries = tokenizer(["ab", "c", "de", "f"])
    assert choose_vocabulary(entries, 4, 3, None, 1).ids.tolist() == [0, 1, 3]


def test_a_tokenizer_with_too_few_types() -> None:
    entries = tokenizer(TEXTS, KINDS[:-1])
    with pytest.raises(ConversionError, match=r"one token type.*convert the target again"):
        choose_vocabulary(entries, len(TEXTS), 3, None, 1)


def test_coverage() -> None:
    chosen = choose_vocabulary(tokenizer(TEXTS, KINDS), len(TEXTS), 2, {7: 60, 8: 30, 9: 10}, 1)
    assert chosen.coverage == pytest.approx(0.9)
    assert choose_vocabulary(tokenizer(TEXTS, KINDS), len(TEXTS), 2, None, 1).coverage is None
    huge = dict.fromkeys(range(12), 2**53)  # sums beyond 64-bit integers must not wrap
    assert choose_vocabulary(
        tokenizer(TEXTS, KINDS), len(TEXTS), 6, huge, 1
    ).coverage == pytest.approx(0.5)


def test_the_summary_says_what_chose_the_tokens() -> None:
    entries = tokenizer(TEXTS, KINDS, eos=2, eot=3)
    for n, counts, summary in (
        (5, None, "5 of 12 tokens, by the tokenizer's order"),
        (4, {7: 9, 8: 8, 9: 1}, "4 of 12 tokens, by counts"),
        (5, {7: 9, 8: 8, 9: 1}, "5 of 12 tokens, by counts"),  # and the two that are kept always
        (6, {7: 9, 8: 8, 2: 1}, "6 of 12 tokens: 3 by counts, 2 by the tokenizer's order, 1 kept"),
        (6, {2: 9, 3: 8}, "6 of 12 tokens: 2 by counts, 4 by the tokenizer's order"),
    ):
        chosen = choose_vocabulary(entries, len(TEXTS), n, counts, 1).summary
        assert chosen.removesuffix(" in any case") == summary
    texts = [f"t{i}" for i in range(5000)]
    chosen = choose_vocabulary(tokenizer(texts), 5000, 4000, {7: 1}, 1).summary
    assert chosen == "4,000 of 5,000 tokens: 1 by counts, 3,999 by the tokenizer's order"


@pytest.mark.parametrize("n", [N_VOCAB, N_VOCAB + 1, 10**9])
def test_not_smaller_than_the_vocabulary(n: int, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=f"{n} is not smaller than the target's 160 tokens"):
        convert(PLAIN, TARGET, tmp_path / "out.gguf", draft_vocab=n)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n", [-1, 0, 1, TOP_K - 1])
def test_fewer_than_the_selector_compares(n: int, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=f"of {n} is too small.*at least {TOP_K}"):
        convert(PLAIN, TARGET, tmp_path / "out.gguf", draft_vocab=n)
    convert(PLAIN, TARGET, tmp_path / "out.gguf", draft_vocab=TOP_K)


def test_fewer_than_are_kept_always() -> None:
    with pytest.raises(ConversionError, match=r"2 are kept always.*at least 2"):
        choose(1, eos=2, eot=3)


# -- Counts files ----------------------------------------------------------------------------------


def test_a_counts_file(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_bytes(b"# id count\n\n100 7\r\n  30\t9007199254740992 \n31 0\n")
    assert kept_by(draft_vocab=4, vocab_counts=path) == kept_by(
        draft_vocab=4, vocab_counts={100: 7, 30: 2**53}
    )
    assert {30, 100} < set(kept_by(draft_vocab=4, vocab_counts=str(path)))


BAD_LINES = {
    "negative count": (b"5 -1", "count '-1' is not a whole number"),
    "negative id": (b"-5 1", "token id '-5' is not a whole number"),
    "outside": (b"160 1", "token id 160 is outside the target's vocabulary of 160"),
    "far outside": (b"99999999999999999999 1", "is outside"),
    "endless": (b"9" * 500 + b" 1", "is not a whole number"),
    "NaN": (b"5 nan", "count 'nan' is not a whole number"),
    "infinite": (b"5 inf", "count 'inf'"),
    "fraction": (b"5 1.5", r"count '1\.5'"),
    "too many times": (b"5 9007199254740993", "not between 0 and 9007199254740992"),
    "twice": (b"4 1", "token 4 has a count already"),
    "no count": (b"5", "expected a token id and its count.*not '5'"),
    "three fields": (b"5 6 7", "expected a token id and its count.*not '5 6 7'"),
    "words": (b"hello 3", "token id 'hello'"),
    "JSON": (b'{"5": 3}', r"token id '\{"),
    "binary": (b"\xff\x00\xfe 1", r"token id '.*xff"),
    "other digits": ("٣ 1".encode(), "is not a whole number"),
    "long line": (b"#" * 5000, "the line is too long"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_damaged_counts_name_file_and_line(case: str, tmp_path: Path) -> None:
    line, message = BAD_LINES[case]
    path = tmp_path / "counts.txt"
    path.write_bytes(b"# comment\n4 1\n" + line + b"\n6 1\n")
    with pytest.raises(ConversionError, match=f"^{re.escape(str(path))}:3: .*{message}"):
        convert(PLAIN, TARGET, tmp_path / "out.gguf", draft_vocab=20, vocab_counts=path)
    assert os.listdir(tmp_path) == ["counts.txt"]


def test_counts_that_count_nothing(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    for text in ("", "# only a comment\n", "5 0\n"):
        path.write_text(text)
        with pytest.raises(ConversionError, match=r"counts\.txt: nothing was counted"):
            kept_by(draft_vocab=20, vocab_counts=path)
    with pytest.raises(ConversionError, match=r"none\.txt"):
        kept_by(draft_vocab=20, vocab_counts=tmp_path / "none.txt")
    for counts in ({160: 1}, {-1: 1}, {5: -1}):
        with pytest.raises(ConversionError, match="the counts given"):
            kept_by(draft_vocab=20, vocab_counts=counts)


def test_counts_without_a_size(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="give its size as well"):
        convert(PLAIN, TARGET, tmp_path / "out.gguf", vocab_counts={5: 1})


def test_the_counts_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("5 1\n")
    with pytest.raises(ConversionError, match="lies in the input"):
        convert(PLAIN, TARGET, path, draft_vocab=20, vocab_counts=path)
    assert path.read_text() == "5 1\n"


# -- Fixtures --------------------------------------------------------------------------------------


def test_fixture_helpers_agree(tmp_path: Path) -> None:
    """The targets made here are read as the fixture is."""
    target = make_target(tmp_path / "target.gguf")
    assert describe(target).vocab_size == describe(TARGET).vocab_size == N_VOCAB
    saved = Drafter.load("tiny-plain").save(tmp_path / "in")
    assert (
        read_safetensors(saved / "model.safetensors").keys()
        == Drafter.load("tiny-plain").tensors.keys()
    )
