"""The drafter reaches its tensors through ggml, so that they may live in any device's memory.

The fused operations are the exception: they are made for the CPU alone. What a weight is read from
is a mapped file, which is no tensor.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DRAFTER = Path(__file__).resolve().parents[2] / "native" / "drafter"
SOURCES = sorted(path for path in DRAFTER.iterdir() if path.suffix in {".cpp", ".h", ".inc"})
FUSED = "drafter_ops_fused.cpp"

# A tensor's memory, as a member or by one of ggml's functions that read or write it on the host.
HOST_ACCESS = re.compile(r"(?:->|\.)data\b(?!\()|\bggml_(?:get|set)_(?:data|[fi]32|zero)\w*")
FILE_ACCESS = re.compile(r"\binfo(?:->|\.)data\b")


def host_accesses(text: str) -> list[str]:
    code = re.sub(r"//.*", "", text)
    return HOST_ACCESS.findall(FILE_ACCESS.sub("", code))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_tensors_are_reached_through_ggml(path: Path) -> None:
    found = host_accesses(path.read_text())
    if path.name == FUSED:
        assert found, "the pattern no longer finds what it is for"
    else:
        assert not found, "use ggml_backend_tensor_set and _get"


@pytest.mark.parametrize(
    ("line", "is_host_access"),
    [
        ("auto *rows = static_cast<float *>(graph.features->data);", True),
        ("float *values = static_cast<float *>((*tensor).data);", True),
        ("float *values = ggml_get_data_f32(tensor);", True),
        ("ggml_set_f32(tensor, 1.0f);", True),
        ("ggml_set_zero(tensor);", True),
        ("set(graph.slots[kind], slots);  // not ->data", False),
        ("ggml_backend_tensor_get(tensor, values->data(), 0, n_bytes);", False),
        ("const auto *ids = reinterpret_cast<const int64_t *>(info.data);", False),
        ("ggml_set_input(tensor);", False),
    ],
)
def test_the_pattern(line: str, is_host_access: bool) -> None:
    assert bool(host_accesses(line)) is is_host_access
