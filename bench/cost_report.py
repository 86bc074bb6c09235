"""Turns the runs of the cost curve into rows and tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from .report import machine_facts, markdown_table

if TYPE_CHECKING:
    from .cost_curve import CostRun

STOCK = "stock"
_OURS_BUFFER = "DFLASH2"
_VERIFY = 8  # the width of the column that compares a verification with a single token

LEGEND = (
    "Milliseconds per decode: the median of the rounds' medians, and the smallest time of all in "
    "brackets. Ratio: stock / this, round by round: the median, and the smallest and largest in "
    f"brackets; above 1 is faster than stock. {_VERIFY}:1 is the cost of {_VERIFY} tokens over "
    "that of one. Logits: relative distance (L2) to stock's. Rows alone: whether a token's logits "
    "have the same bits however many tokens are decoded with it."
)


@dataclass(frozen=True, slots=True)
class CostRow:
    """One system on one model at one width. Ratios compare with stock in the same round."""

    case: str
    kernels: str
    n_tokens: int
    ms: float
    ms_range: tuple[float, float]  # of the rounds' medians
    ms_best: float
    ratio: float | None
    ratio_range: tuple[float, float] | None


def summarise(runs: Sequence[CostRun]) -> list[CostRow]:
    """The rows, in the order of the runs."""
    stock = {
        (run.case, run.round, n): median(samples)
        for run in runs
        if run.kernels == STOCK
        for n, samples in run.samples.items()
    }
    by_key: dict[tuple[str, str, int], list[CostRun]] = defaultdict(list)
    for run in runs:
        for n in run.samples:
            by_key[run.case, run.kernels, n].append(run)
    return [_row(case, kernels, n, mine, stock) for (case, kernels, n), mine in by_key.items()]


def _row(
    case: str,
    kernels: str,
    n: int,
    runs: Sequence[CostRun],
    stock: dict[tuple[str, int, int], float],
) -> CostRow:
    medians = [median(run.samples[n]) for run in runs]
    ratios = [
        stock[case, run.round, n] / ms
        for run, ms in zip(runs, medians, strict=True)
        if (case, run.round, n) in stock
    ]
    return CostRow(
        case=case,
        kernels=kernels,
        n_tokens=n,
        ms=median(medians),
        ms_range=(min(medians), max(medians)),
        ms_best=min(min(run.samples[n]) for run in runs),
        ratio=median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
    )


def case_lines(runs: Sequence[CostRun], case: str) -> list[str]:
    """One model's tables, in Markdown."""
    mine = [run for run in runs if run.case == case]
    rows = summarise(mine)
    systems = list(dict.fromkeys(row.kernels for row in rows))
    widths = list(dict.fromkeys(row.n_tokens for row in rows))
    cells = {(row.kernels, row.n_tokens): row for row in rows}
    header = [case, *(f"n={n}" for n in widths[:-1]), f"prefill {widths[-1]}", f"{_VERIFY}:1"]
    body = []
    for kernels in systems:
        own = [cells[kernels, n] for n in widths]
        body.append([f"{kernels}, ms", *map(_times, own), _verify_ratio(cells, kernels)])
        if kernels != STOCK and own[0].ratio is not None:
            body.append([f"{kernels}, ratio", *map(_ratio, own)])
    lines = ["", *markdown_table(header, body), ""]
    checks = [_checks(mine, kernels) for kernels in systems]
    return [*lines, *markdown_table(_CHECKS, checks), "", *_warnings(mine)]


def _times(row: CostRow) -> str:
    return f"{row.ms:.2f} ({row.ms_best:.2f})"


def _ratio(row: CostRow) -> str:
    if row.ratio is None or row.ratio_range is None:
        return "-"
    return f"{row.ratio:.2f} ({row.ratio_range[0]:.2f}-{row.ratio_range[1]:.2f})"


def _verify_ratio(cells: dict[tuple[str, int], CostRow], kernels: str) -> str:
    one, many = cells.get((kernels, 1)), cells.get((kernels, _VERIFY))
    return f"{many.ms / one.ms:.2f}" if one and many else "-"


_CHECKS = ("checks", "isa", "logits", "rows alone", "weights, MiB", "others' CPU, s")


def _checks(runs: Sequence[CostRun], kernels: str) -> list[str]:
    mine = [run for run in runs if run.kernels == kernels]
    last = mine[-1]
    stock = next((run for run in runs if run.kernels == STOCK), None)
    distance = "-" if stock is None else f"{relative_distance(last.logits, stock.logits):.2e}"
    buffers = ", ".join(f"{name} {mib:.0f}" for name, mib in last.weight_buffers_mib.items())
    foreign = [run.foreign_cpu_s for run in mine if run.foreign_cpu_s is not None]
    independent = all(run.is_row_independent for run in mine)
    return [
        kernels,
        last.isa or "-",
        distance if all(run.is_finite for run in mine) else "NOT FINITE",
        "yes" if independent else "no",
        buffers,
        f"{sum(foreign):.1f}" if foreign else "unknown",
    ]


def relative_distance(found: Sequence[float], expected: Sequence[float]) -> float:
    """|found - expected| / |expected|."""
    difference = math.dist(found, expected)
    return difference / math.hypot(*expected)


def _warnings(runs: Sequence[CostRun]) -> list[str]:
    """What makes a comparison worthless."""
    return [
        f"WARNING: {run.case}, {run.kernels}, round {run.round + 1}: no weights in {_OURS_BUFFER} "
        "buffers: pydflash2's kernels took no part"
        for run in runs
        if run.kernels.startswith("ours") and _OURS_BUFFER not in run.weight_buffers_mib
    ]


def markdown(runs: Sequence[CostRun], result: dict[str, Any]) -> str:
    """The whole report as a Markdown page."""
    settings = result["settings"]
    lines = [
        "# Cost of a decode",
        "",
        *(f"- {line}" for line in machine_facts(result)),
        f"- {settings['n_threads']} threads, depth {settings['depth']}, {settings['n_rounds']} "
        f"rounds of {settings['n_passes']} x {settings['n_decodes']} decodes",
        "",
    ]
    for case in dict.fromkeys(run.case for run in runs):
        first = next(run for run in runs if run.case == case)
        types = ", ".join(f"{n} x {name}" for name, n in first.tensor_types.items())
        lines += [f"## {case}", "", f"{first.description}; tensors: {types}"]
        lines += case_lines(runs, case)
    return "\n".join([*lines, LEGEND, ""])
