"""Checks the benches of the kernels: what they conclude, on made-up times, and their models.

Needs llama-cpp-python, but neither a real model nor pydflash2's library.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize

from bench import cost_report
from bench.cost_curve import CostRun
from tests.tools.kernels import Kernels
from tests.tools.synthetic import SHAPES, TYPES, random_matrix, synthetic
from tests.tools.worker_process import ask

DECODABLE = [name for name in TYPES if name not in ("MXFP4", "F32", "F16", "BF16")]


def _run(kernels: str, turn: int, ms: float, buffers: dict[str, float]) -> CostRun:
    return CostRun(
        case="m",
        kernels=kernels,
        round=turn,
        isa=None,
        samples={1: [ms, ms, 9 * ms], 8: [2 * ms], 256: [30 * ms]},
        description="a model",
        tensor_types={},
        weight_buffers_mib=buffers,
        is_row_independent=True,
        is_finite=True,
        logits=[3.0, 4.0],
        foreign_cpu_s=0.0,
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is twice as slow in one round must not move the ratio."""
    runs = [
        _run(name, turn, ms * (turn + 1), {})
        for turn in range(2)
        for name, ms in (("stock", 3.0), ("ours", 2.0))
    ]
    rows = {(row.kernels, row.n_tokens): row for row in cost_report.summarise(runs)}
    assert rows["ours", 8].ratio_range == (1.5, 1.5)
    assert rows["ours", 1].ms_best == 2.0
    assert rows["stock", 1].ms_range == (3.0, 6.0)


def test_kernels_that_took_no_part_are_told() -> None:
    active = {"CPU_Mapped": 1.0, "DFLASH2": 2.0}
    runs = [_run("stock", 0, 1.0, {}), _run("ours", 0, 1.0, active), _run("ours", 1, 1.0, {})]
    warnings = [line for line in cost_report.case_lines(runs, "m") if "WARNING" in line]
    assert len(warnings) == 1
    assert "round 2" in warnings[0]


def test_systems_differ_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DF2_FORCE_ISA", "ref")
    assert Kernels("stock", ours=False).variables()["DF2_KERNELS"] == "off"
    assert "DF2_FORCE_ISA" not in Kernels("ours", ours=True).variables()
    assert Kernels("ours avx2", ours=True, isa="avx2").variables()["DF2_FORCE_ISA"] == "avx2"


@pytest.mark.parametrize("name", DECODABLE)
def test_random_weights_have_their_deviation(name: str) -> None:
    kind = GGMLQuantizationType[name]
    weights = dequantize(random_matrix(np.random.default_rng(5), kind, 32, 1024), kind)
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(1 / 32, rel=0.15)
    assert abs(weights.mean()) < 0.15 * weights.std()


@pytest.mark.parametrize("family", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("name", ["Q4_K", "MXFP4"])
def test_synthetic_models_run(family: str, name: str, tmp_path: Path) -> None:
    reply = ask(
        "bench.cost_worker",
        {
            "task": "cost",
            "model": str(synthetic(family, name, folder=tmp_path)),
            "kernels": False,
            "n_ctx": 128,
            "n_threads": 1,
            "depth": 16,
            "widths": [1, 4],
            "n_prefill": 32,
            "n_passes": 1,
            "n_decodes": 2,
            "n_prefills": 1,
        },
        environment=Kernels("stock", ours=False).variables(),
    )
    assert [(row["n_tokens"], len(row["samples"])) for row in reply["ms"]] == [
        (1, 2),
        (4, 2),
        (32, 1),
    ]
    assert reply["is_finite"]
    assert reply["description"].startswith(SHAPES[family].architecture)
