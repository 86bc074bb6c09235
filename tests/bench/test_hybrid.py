"""Checks the bench of hybrid targets: its models, its rows on made-up times, and one text."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.hybrid import HybridRun, parse, summarise
from tests.tools.recited_pair import (
    ARCHITECTURES,
    N_RING,
    known,
    mean_accepted,
    recited_drafter,
    recited_target,
    ring,
)
from tests.tools.worker_process import ask


def _run(system: str, round_: int, tokens_per_s: float) -> HybridRun:
    return HybridRun(
        system=system,
        rate=0.6,
        n_draft=3,
        round=round_,
        tokens_per_s=tokens_per_s,
        tokens_per_cycle=2.0,
        draft_ms=1.0,
        verify_ms=4.0,
        cycle_ms=5.0,
        foreign_cpu_s=None,
    )


def test_targets_are_compared_within_a_round() -> None:
    runs = [_run("attention", 0, 100), _run("hybrid", 0, 90)]
    runs += [_run("attention", 1, 50), _run("hybrid", 1, 60)]
    row = next(row for row in summarise(runs) if row.system == "hybrid")
    assert row.ratio == pytest.approx(1.05)
    assert row.ratio_range == pytest.approx((0.9, 1.2))
    assert row.tokens_per_s == 75


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8])
def test_drafters_are_right_as_often_as_asked(rate: float) -> None:
    right = known(rate)
    assert sum(right) == round(rate * N_RING)
    expected = sum(rate**n for n in range(1, 8))
    assert mean_accepted(right, 7) == pytest.approx(expected, rel=0.05)


def test_the_ring_holds_no_token_twice() -> None:
    assert len(set(ring())) == N_RING


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_text_is_the_ring_and_drafts_are_accepted_as_predicted(
    architecture: str, tmp_path: Path
) -> None:
    reply = ask(
        "bench.hybrid_worker",
        {
            "task": "hybrid",
            "target": str(recited_target(architecture, "tiny", folder=tmp_path)),
            "drafter": str(recited_drafter("tiny", 0.6, folder=tmp_path)),
            "n_predict": 2 * N_RING,
            "n_threads": 1,
            "n_ctx": 512,
            "n_draft": 2,
            "way": None,
        },
    )
    assert reply["is_expected"]
    accepted = reply["n_accepted"] / reply["n_cycles"]
    assert accepted == pytest.approx(mean_accepted(known(0.6), 2), rel=0.15)


def test_rates_are_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rates", "1.5"])
    assert "between 0 and 1" in capsys.readouterr().err
