"""``python -m bench hybrid``: what drafting gains on a target with a recurrent state.

A recurrent state cannot be cut like an attention cache; what going back costs is what is measured.
Weights are random, but of real size, and drafters are right as often as asked, so that all targets
make the same drafts, accept the same tokens and write the same text. An attention target of the
same size is what the hybrid one is compared with, in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.tools import recited_pair
from tests.tools.errors import ToolError
from tests.tools.worker_process import ask

from . import environment, systems, upstream
from .arguments import lengths, positive
from .draft_files import greeting
from .report import machine_facts, markdown_table
from .results import now, result_folder, write
from .systems import UPSTREAM, Settings, System

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_N_CTX = 2048
_ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class HybridSystem:
    """A target, and how it goes back. ``way``: None for the library's choice."""

    name: str
    architecture: str
    way: str | None = None


_SYSTEMS = (
    HybridSystem(_ATTENTION, "qwen3"),
    HybridSystem("hybrid", "qwen35"),
    HybridSystem("hybrid, marks", "qwen35", "marks"),
)
_UPSTREAM = HybridSystem(f"hybrid, {UPSTREAM}", "qwen35", UPSTREAM)


@dataclass(frozen=True, slots=True)
class HybridRun:
    """One process. ``rate``: of drafted tokens that are right. Milliseconds are of a cycle."""

    system: str
    rate: float
    n_draft: int
    round: int
    tokens_per_s: float
    tokens_per_cycle: float
    draft_ms: float
    verify_ms: float
    cycle_ms: float
    foreign_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class HybridRow:
    """A system's median over rounds. ``ratio``: its tokens/s over those of the attention target in
    the same round; of llama.cpp's drafting, too."""

    system: str
    rate: float
    n_draft: int
    tokens_per_s: float
    ratio: float
    ratio_range: tuple[float, float]
    tokens_per_cycle: float
    draft_ms: float
    verify_ms: float
    cycle_ms: float


@dataclass(slots=True)
class _Experiment:
    """Everything known so far; written out whole after every round."""

    facts: dict[str, Any]
    settings: dict[str, Any]
    runs: list[HybridRun] = field(default_factory=list)


def summarise(runs: Sequence[HybridRun]) -> list[HybridRow]:
    """The rows, in the order of the runs."""
    attention = {
        (run.rate, run.n_draft, run.round): run.tokens_per_s
        for run in runs
        if run.system == _ATTENTION
    }
    by_key: dict[tuple[str, float, int], list[HybridRun]] = defaultdict(list)
    for run in runs:
        by_key[run.system, run.rate, run.n_draft].append(run)
    return [_row(system, rate, n, mine, attention) for (system, rate, n), mine in by_key.items()]


def _row(
    system: str,
    rate: float,
    n_draft: int,
    runs: Sequence[HybridRun],
    attention: dict[tuple[float, int, int], float],
) -> HybridRow:
    ratios = [run.tokens_per_s / attention[rate, n_draft, run.round] for run in runs]
    return HybridRow(
        system=system,
        rate=rate,
        n_draft=n_draft,
        tokens_per_s=median(run.tokens_per_s for run in runs),
        ratio=median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        tokens_per_cycle=median(run.tokens_per_cycle for run in runs),
        draft_ms=median(run.draft_ms for run in runs),
        verify_ms=median(run.verify_ms for run in runs),
        cycle_ms=median(run.cycle_ms for run in runs),
    )


def bench(arguments: argparse.Namespace) -> int:
    """Runs the bench; raises ToolError if something has to be fixed first."""
    size = arguments.size
    targets = {name: recited_pair.recited_target(name, size) for name in recited_pair.ARCHITECTURES}
    drafters = {rate: recited_pair.recited_drafter(size, rate) for rate in arguments.rates}
    tools = None if arguments.no_upstream else upstream.ensure(jobs=arguments.jobs)
    experiment = _Experiment(
        facts={
            "date": now(),
            "environment": environment.describe(),
            "files": [
                environment.describe_file(path) for path in (*targets.values(), *drafters.values())
            ],
            "upstream": upstream.describe() if tools else None,
        },
        settings={
            "size": size,
            "rates": arguments.rates,
            "n_draft": arguments.n_draft,
            "n_predict": arguments.tokens,
            "n_threads": arguments.threads,
        },
    )
    folder = result_folder(arguments.out, "hybrid-")
    environment.warn_if_busy()
    try:
        _run_all(experiment, arguments, targets, drafters, tools, folder)
    except KeyboardInterrupt:
        print("\ninterrupted: the finished runs are reported", file=sys.stderr)
    if not experiment.runs:
        return 130
    print()
    print(_page(experiment))
    print(f"wrote {folder / 'hybrid.json'} and {folder / 'hybrid.md'}")
    return 0


def _cases(arguments: argparse.Namespace) -> list[tuple[float, int]]:
    """Rates and draft lengths; without a drafter the rate does not matter."""
    first = arguments.rates[0]
    return [(first, 0), *((rate, n) for rate in arguments.rates for n in arguments.n_draft)]


def _run_all(
    experiment: _Experiment,
    arguments: argparse.Namespace,
    targets: dict[str, Path],
    drafters: dict[float, Path],
    tools: upstream.Upstream | None,
    folder: Path,
) -> None:
    """Round by round; within one, all systems in turn in every case."""
    for round_ in range(arguments.rounds):
        for rate, n_draft in _cases(arguments):
            chosen = [*_SYSTEMS, *([_UPSTREAM] if tools and n_draft else [])]
            for system in chosen:
                settings = Settings(
                    target=targets[system.architecture],
                    drafter=drafters[rate],
                    n_predict=arguments.tokens,
                    n_threads=arguments.threads,
                    n_ctx=_N_CTX,
                    n_context=0,
                )
                interference = environment.Interference()
                found = (
                    _upstream(settings, n_draft, tools)
                    if system is _UPSTREAM
                    else _ours(settings, n_draft, system.way)
                )
                one = HybridRun(
                    system=system.name,
                    rate=rate if n_draft else 0.0,
                    n_draft=n_draft,
                    round=round_,
                    foreign_cpu_s=interference.foreign_seconds(),
                    **found,
                )
                experiment.runs.append(one)
                print(
                    f"round {round_ + 1}, rate {rate:g}, n={n_draft}, {system.name}: "
                    f"{one.tokens_per_s:.1f} tokens/s, {one.cycle_ms:.1f} ms per cycle",
                    flush=True,
                )
        _write(experiment, folder)


def _ours(settings: Settings, n_draft: int, way: str | None) -> dict[str, float]:
    reply = ask(
        "bench.hybrid_worker",
        {
            "task": "hybrid",
            "target": str(settings.target),
            "drafter": str(settings.drafter),
            "n_predict": settings.n_predict,
            "n_threads": settings.n_threads,
            "n_ctx": settings.n_ctx,
            "n_draft": n_draft,
            "way": way,
        },
    )
    if not reply["is_expected"]:
        raise ToolError("the target did not write the text it was made for", "report this")
    return _figures(reply["n_decoded"], reply["decode_s"], reply["n_cycles"], reply["phases_s"])


def _upstream(
    settings: Settings, n_draft: int, tools: upstream.Upstream | None
) -> dict[str, float]:
    found = systems.run(System(UPSTREAM, n_draft), greeting(settings.target), settings, tools)
    return _figures(found.n_decoded, found.decode_s, found.n_cycles, found.phases_s)


def _figures(
    n_decoded: int, decode_s: float, n_cycles: int, phases_s: dict[str, float]
) -> dict[str, float]:
    return {
        "tokens_per_s": n_decoded / decode_s,
        "tokens_per_cycle": n_decoded / n_cycles,
        "draft_ms": 1e3 * phases_s["draft"] / n_cycles,
        "verify_ms": 1e3 * phases_s["verify"] / n_cycles,
        "cycle_ms": 1e3 * decode_s / n_cycles,
    }


def _page(experiment: _Experiment) -> str:
    rows = summarise(experiment.runs)
    lines = [
        f"# Drafting on a hybrid target, {experiment.settings['size']}",
        "",
        *(f"- {fact}" for fact in machine_facts(experiment.facts)),
        f"- {experiment.settings['n_threads']} threads, texts of "
        f"{experiment.settings['n_predict']} tokens",
        "",
        "tokens/s: median of the rounds. x attention: against the attention target of that size "
        "in the same round, smallest and largest in brackets. Times are milliseconds of a cycle; "
        "draft and verify are what each system calls so.",
        "",
    ]
    columns = (
        "right",
        "n",
        "system",
        "tokens/s",
        "x attention",
        "tokens per cycle",
        "draft",
        "verify",
        "cycle",
    )
    cells = [
        [
            f"{row.rate:g}" if row.n_draft else "-",
            str(row.n_draft),
            row.system,
            f"{row.tokens_per_s:.1f}",
            f"{row.ratio:.2f} ({row.ratio_range[0]:.2f}-{row.ratio_range[1]:.2f})",
            f"{row.tokens_per_cycle:.2f}",
            f"{row.draft_ms:.2f}",
            f"{row.verify_ms:.2f}",
            f"{row.cycle_ms:.2f}",
        ]
        for row in sorted(rows, key=lambda row: (row.n_draft > 0, row.rate, row.n_draft))
    ]
    return "\n".join([*lines, *markdown_table(columns, cells), ""])


def _write(experiment: _Experiment, folder: Path) -> None:
    values = {
        "format": FORMAT,
        **experiment.facts,
        "settings": experiment.settings,
        "rows": [asdict(row) for row in summarise(experiment.runs)],
        "runs": [asdict(one) for one in experiment.runs],
    }
    write(
        folder,
        {"hybrid.json": json.dumps(values, indent=1) + "\n", "hybrid.md": _page(experiment)},
    )


def _rates(text: str) -> list[float]:
    rates = [float(part) for part in text.split(",")]
    if not all(0 <= rate <= 1 for rate in rates):
        raise argparse.ArgumentTypeError("rates are between 0 and 1")
    return rates


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench hybrid",
        description="Drafting on hybrid targets against attention targets, at given rates.",
    )
    add = parser.add_argument
    sizes = [name for name in recited_pair.SIZES if name != "tiny"]
    add("--size", choices=sizes, default=sizes[0], help=f"of the models (default: {sizes[0]})")
    add("--rates", type=_rates, default=_rates("0.3,0.6,0.8"), help="right drafted tokens")
    add("--n-draft", type=lengths, default=lengths("3,7"), help="draft lengths: 1-7 or 3,7")
    add("--tokens", type=positive, default=192, help="tokens per text (default: 192)")
    add("--threads", type=positive, default=2, help="threads of every system (default: 2)")
    add("--rounds", type=positive, default=3, help="how often everything is run (default: 3)")
    add("--no-upstream", action="store_true", help="leave llama.cpp's own drafting out")
    add("--out", type=Path, help="folder of the results (default: one per run under build/bench)")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="parallel compilations")
    return parser.parse_args(argv)
