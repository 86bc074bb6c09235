"""Turns the runs of the draft bench into rows and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from .draft_floor import Draft, Floor, Limits, Matrix, floor
from .report import machine_facts, markdown_table, print_whole
from .systems import OURS, UPSTREAM

if TYPE_CHECKING:
    from .draft import Experiment

_COLUMNS = ("n", "system", "draft, ms", "ratio", "fed, ms", "ratio", "read", "mult.", "x floor")
LEGEND = (
    "n: tokens drafted per cycle. draft: milliseconds per cycle, median of the rounds; smallest "
    "and largest in brackets. llama.cpp's is what its log gives: block and selection, without "
    "feeding hidden states to the drafter; pydflash2's has the feeding in it. ratio: to llama.cpp "
    "with the whole vocabulary, round by round; below 1 is faster. fed: with feeding. The log does "
    "not time that: for llama.cpp it is what remains of a cycle after verifying and sampling, so "
    "the tool's bookkeeping is in it. read: reading the drafter's matrices and the head's rows "
    "once, in their types, at the speed this machine reads memory; mult.: their products at its "
    "peak rate. The longer one is the floor; less than 1 x floor means that caches kept some. "
    "reduced: the drafter with a vocabulary of its own."
)


@dataclass(frozen=True, slots=True)
class DraftSystem:
    """Who drafts, with the whole vocabulary or a reduced one."""

    kind: str  # OURS or UPSTREAM
    is_reduced: bool

    @property
    def name(self) -> str:
        """How the results call it."""
        return f"{self.kind} reduced" if self.is_reduced else self.kind


@dataclass(frozen=True, slots=True)
class DraftRun:
    """One process on one prompt. Times are sums over the cycles, ``fed_ms`` with feeding."""

    system: DraftSystem
    n_draft: int
    round: int
    prompt: str
    draft_ms: float
    fed_ms: float
    n_cycles: int
    n_decoded: int
    foreign_cpu_s: float | None

    def as_json(self) -> dict[str, Any]:
        """As it goes into the results."""
        return {**asdict(self), "system": self.system.name}


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One system at one draft length: medians of the rounds, and what lies between their ends.

    Milliseconds are per cycle. Ratios compare with llama.cpp and the whole vocabulary in the same
    round, ``times_floor`` with the floor of that round; None where there is nothing to compare.
    """

    n_draft: int
    system: str
    ms: float
    ms_range: tuple[float, float]
    ratio: float | None
    ratio_range: tuple[float, float] | None
    fed_ms: float
    fed_ratio: float | None
    reading_ms: float | None
    multiplying_ms: float | None
    times_floor: float | None


@dataclass(frozen=True, slots=True)
class _Cycle:
    """The mean cycle of one system in one round."""

    ms: float
    fed_ms: float
    n_decoded: float


def summarise(
    runs: Sequence[DraftRun], limits: Sequence[Limits], matrices: dict[bool, list[Matrix]]
) -> list[DraftRow]:
    """One row per draft length and system. ``limits``: by round; ``matrices``: by is_reduced."""
    by_key: dict[tuple[int, DraftSystem], dict[int, list[DraftRun]]] = {}
    for run in runs:
        rounds = by_key.setdefault((run.n_draft, run.system), defaultdict(list))
        rounds[run.round].append(run)
    cycles = {key: _whole_rounds(rounds) for key, rounds in by_key.items()}
    systems = list(dict.fromkeys(run.system for run in runs))
    rows = []
    for n_draft in dict.fromkeys(run.n_draft for run in runs):
        theirs = cycles.get((n_draft, DraftSystem(UPSTREAM, is_reduced=False)), {})
        for system in systems:
            mine = cycles.get((n_draft, system))
            if mine is None:
                continue
            floors = {}
            if system.kind == OURS:
                floors = {
                    turn: floor(
                        matrices[system.is_reduced], Draft(n_draft, cycle.n_decoded), limits[turn]
                    )
                    for turn, cycle in mine.items()
                }
            rows.append(_row(n_draft, system, mine, theirs, floors))
    return rows


def _whole_rounds(rounds: dict[int, list[DraftRun]]) -> dict[int, _Cycle]:
    """Rounds in which all prompts ran: an interrupted one would compare different texts."""
    largest = max(len(runs) for runs in rounds.values())
    return {turn: _cycle(runs) for turn, runs in rounds.items() if len(runs) == largest}


def _cycle(runs: Sequence[DraftRun]) -> _Cycle:
    n_cycles = sum(run.n_cycles for run in runs)
    return _Cycle(
        ms=sum(run.draft_ms for run in runs) / n_cycles,
        fed_ms=sum(run.fed_ms for run in runs) / n_cycles,
        n_decoded=sum(run.n_decoded for run in runs) / n_cycles,
    )


def _row(
    n_draft: int,
    system: DraftSystem,
    mine: dict[int, _Cycle],
    theirs: dict[int, _Cycle],
    floors: dict[int, Floor],
) -> DraftRow:
    times = [cycle.ms for cycle in mine.values()]
    is_yardstick = mine is theirs
    both = [] if is_yardstick else [turn for turn in mine if turn in theirs]
    ratios = [mine[turn].ms / theirs[turn].ms for turn in both]
    fed_ratios = [mine[turn].fed_ms / theirs[turn].fed_ms for turn in both]
    return DraftRow(
        n_draft=n_draft,
        system=system.name,
        ms=median(times),
        ms_range=(min(times), max(times)),
        ratio=median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        fed_ms=median(cycle.fed_ms for cycle in mine.values()),
        fed_ratio=median(fed_ratios) if fed_ratios else None,
        reading_ms=median(f.reading_ms for f in floors.values()) if floors else None,
        multiplying_ms=median(f.multiplying_ms for f in floors.values()) if floors else None,
        times_floor=(
            median(mine[turn].ms / found.ms for turn, found in floors.items()) if floors else None
        ),
    )


def _digits(ms: float | None) -> str:
    """Three significant digits."""
    if ms is None:
        return "-"
    return f"{ms:.{2 if ms < 9.995 else 1 if ms < 99.95 else 0}f}"


def _cells(row: DraftRow) -> list[str]:
    ratio = "-"
    if row.ratio is not None and row.ratio_range is not None:
        ratio = f"{row.ratio:.2f} ({row.ratio_range[0]:.2f}-{row.ratio_range[1]:.2f})"
    return [
        str(row.n_draft),
        row.system,
        f"{_digits(row.ms)} ({_digits(row.ms_range[0])}-{_digits(row.ms_range[1])})",
        ratio,
        _digits(row.fed_ms),
        "-" if row.fed_ratio is None else f"{row.fed_ratio:.2f}",
        _digits(row.reading_ms),
        _digits(row.multiplying_ms),
        "-" if row.times_floor is None else f"{row.times_floor:.2f}",
    ]


def facts(experiment: Experiment) -> Iterator[str]:
    """What the numbers were made with, a line each."""
    known, settings = experiment.facts, experiment.settings
    yield from machine_facts(known)
    yield f"llama.cpp: {known['upstream']['commit']}, from {known['upstream']['package']}"
    for role in ("target", "drafter", "reduced"):
        if known[role] is not None:
            yield f"{role}: {known[role]['name']}"
    for is_reduced, matrices in experiment.matrices.items():
        yield f"a draft{' with the reduced one' if is_reduced else ''} reads {_bytes(matrices)}"
    for name, n_bytes in experiment.packed_bytes.items():
        yield f"{name} keeps the drafter's matrices packed in {n_bytes / 1e6:.1f} MB"
    lengths = settings["prompt_tokens"]
    yield (
        f"{settings['n_predict']} tokens or a few more per run, prompts of {min(lengths)} to "
        f"{max(lengths)} tokens, {settings['n_threads']} threads, rounds: {settings['n_rounds']}"
    )
    reads = [limit.read_bytes / 1e9 for limit in experiment.limits]
    int8 = [limit.int8_operations / 1e9 for limit in experiment.limits]
    yield (
        f"the machine at most, round by round: reading {min(reads):.1f}-{max(reads):.1f} GB/s, "
        f"8-bit products {min(int8):.0f}-{max(int8):.0f} GOP/s"
    )
    foreign = [run.foreign_cpu_s for run in experiment.runs if run.foreign_cpu_s is not None]
    share = f"{sum(foreign) / experiment.wall_s:.2f} cores" if foreign else "unknown"
    yield f"CPU time taken by other processes during the runs: {share}"
    if not experiment.is_complete:
        yield "INTERRUPTED: only the finished runs are in here"


def _bytes(matrices: Sequence[Matrix]) -> str:
    head = matrices[-1]
    drafter = sum(matrix.n_bytes for matrix in matrices[:-1])
    kinds = ", ".join(dict.fromkeys(matrix.kind for matrix in matrices[:-1]))
    return (
        f"{drafter / 1e6:.1f} MB of layers ({kinds}) and {head.n_bytes / 1e6:.1f} MB of head "
        f"({head.kind})"
    )


def markdown(rows: Sequence[DraftRow], lines: Sequence[str]) -> str:
    """The whole report as a Markdown page."""
    table = markdown_table(_COLUMNS, [_cells(row) for row in rows])
    return "\n".join(["# Drafts", "", *(f"- {line}" for line in lines), "", *table, "", LEGEND, ""])


def show(rows: Sequence[DraftRow], lines: Sequence[str]) -> None:
    """Prints the table on the terminal; without rich, as Markdown."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(markdown(rows, lines))
        return
    console = Console()
    for line in lines:
        console.print(line, highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "system" else "right")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.n_draft != row.n_draft:
            table.add_section()
        table.add_row(*_cells(row))
    print_whole(table)
    console.print(LEGEND, highlight=False, markup=False)
