"""Shows the rows: as Markdown for a file, with rich on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .summary import Row

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "system",
    "tokens/s",
    "x plain",
    "accept. length",
    "prefill ms",
    "draft",
    "verify",
    "accept",
    "other",
    "outside models",
    "text",
)
_ANY_WIDTH = 10_000  # columns: more than any table has
_LEGEND = (
    "tokens/s: all generated tokens over all decoding time of the group; median of the repeats, "
    "smallest and largest in brackets. "
    "x plain: against plain decoding in the same repeat. "
    "accept. length: tokens per verify pass, the bonus token included. "
    "prefill: milliseconds per prompt; draft, verify, accept, other: per generated token. "
    "outside models: share of decoding time spent in neither model; for llama.cpp an upper bound, "
    "because its log does not time the passes that feed the drafter; with --context, all passes "
    "but the drafter's blocks are in its other. "
    "text: against plain greedy decoding; where tokens differ, the largest gap between plain's two "
    "top logits at the first difference. Loading and warming up are excluded everywhere."
)


def _cells(row: Row) -> list[str]:
    phases = row.phases_ms
    n_same = row.n_prompts - row.n_different
    text = "same"
    if row.n_different:
        text = f"{n_same} of {row.n_prompts} same, gap <= {row.largest_gap:.3f}"
    return [
        row.system,
        f"{row.tokens_per_s:.1f} ({_span(row.tokens_per_s_range, 0)})",
        "-" if row.ratio is None else f"{row.ratio:.2f} ({_span(row.ratio_range, 2)})",
        "-" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
        f"{phases['prefill']:.0f}",
        *(
            f"{phases[phase]:.2f}" if phase in phases else "-"
            for phase in ("draft", "verify", "accept", "other")
        ),
        _outside(row),
        text,
    ]


def _outside(row: Row) -> str:
    if row.outside is None:
        return "-"
    return f"{'<= ' if row.is_outside_bound else ''}{100 * row.outside:.1f} %"


def _span(ends: tuple[float, float] | None, digits: int) -> str:
    return "" if ends is None else f"{ends[0]:.{digits}f}-{ends[1]:.{digits}f}"


def _position_cells(row: Row) -> list[str]:
    return [row.system, *(f"{100 * share:.0f}" for share in row.accepted_at)]


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; short rows are filled up."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    for cells in body:
        padded = [*cells, *[""] * (len(header) - len(cells))]
        lines.append("| " + " | ".join(padded) + " |")
    return lines


def markdown(rows: Sequence[Row], result: dict[str, Any]) -> str:
    """The whole report as a Markdown page."""
    lines = ["# Benchmark", "", *(f"- {line}" for line in facts(result)), ""]
    for group, mine in _groups(rows).items():
        lines += [f"## {group}", "", *markdown_table(_COLUMNS, [_cells(row) for row in mine]), ""]
        drafting = [row for row in mine if row.accepted_at]
        if drafting:
            width = max(len(row.accepted_at) for row in drafting)
            header = ["accepted at position, %", *(str(i + 1) for i in range(width))]
            lines += [*markdown_table(header, [_position_cells(row) for row in drafting]), ""]
    differing = list(_differences(result))
    if differing:
        lines += ["## Where texts differ", "", *(f"- {line}" for line in differing), ""]
    lines += [_LEGEND, ""]
    return "\n".join(lines)


def _differences(result: dict[str, Any]) -> list[str]:
    """One line per system and prompt; repeats usually say the same."""
    lines = []
    for run in result["runs"]:
        found = run["difference"]
        if found is not None:
            lines.append(
                f"{run['system']}, {run['group']}/{run['prompt']}: token {found['index']}, plain "
                f"says {found['expected']}, found {found['found']}; gap {found['gap']:.4f}"
            )
    return list(dict.fromkeys(lines))


def machine_facts(known: dict[str, Any]) -> list[str]:
    """When, where and with which versions, a line each: what every report begins with."""
    environment = known["environment"]
    cpu, versions = environment["hardware"]["cpu"], environment["versions"]
    commit = environment["commit"] or "no commit"
    dirty = " with uncommitted changes" if environment["has_uncommitted_changes"] else ""
    return [
        f"date: {known['date']}; commit: {commit[:12]}{dirty}",
        f"machine: {cpu['model']}, {cpu['machine']}, {cpu['cores_usable']} cores",
        f"versions: {', '.join(f'{name} {v}' for name, v in versions.items() if v)}",
    ]


def facts(result: dict[str, Any]) -> list[str]:
    """What the numbers were made with, a line each."""
    settings, drafter = result["settings"], result["drafter"]
    date, machine, versions = machine_facts(result)
    lines = [
        date,
        f"{machine}; {result['system_info']}",
        versions,
        f"target: {result['target']['name']} ({result['target']['description']})",
        f"drafter: {drafter['name'] if drafter else 'none'}",
        f"{settings['n_predict']} tokens, {settings['n_threads']} threads, context size "
        f"{settings['n_ctx']}, {settings['n_repeats']} repeats, greedy",
        _context(result),
    ]
    if result["cross_check"]:
        speeds = ", ".join(f"{speed:.1f}" for speed in result["cross_check"])
        behind = f"{settings['n_context']} tokens" if settings["n_context"] else "an empty context"
        lines.append(f"llama-bench, plain decoding from {behind}: {speeds} tokens/s")
    lines += [
        f"{best['group']}: {best['ours']} is {best['ratio']:.2f} times as fast as "
        f"{best['upstream']}, the best of either"
        for best in result["best"]
    ]
    if not result["is_complete"]:
        lines.append("INTERRUPTED: only the finished runs are in here")
    lines.append(f"CPU time taken by other processes: {result['interference']}")
    return lines


def _context(result: dict[str, Any]) -> str:
    """How much there is to look back on when decoding begins."""
    lengths = result["prompt_tokens"].values()
    span = f"prompts of {min(lengths)} to {max(lengths)} tokens"
    n_context = result["settings"]["n_context"]
    return f"{span}, {n_context} of them filler ahead of the question" if n_context else span


def print_whole(table: Table) -> None:
    """Prints a table as wide as it is. Cells cut off with dots say nothing: rather let a narrow
    terminal wrap whole lines."""
    from rich.console import Console

    Console(width=_ANY_WIDTH).print(table)


def show(rows: Sequence[Row], result: dict[str, Any]) -> None:
    """Prints the tables on the terminal; without rich, as Markdown."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(markdown(rows, result))
        return
    console = Console()
    for line in facts(result):
        console.print(line, highlight=False, markup=False)
    for group, mine in _groups(rows).items():
        table = Table(title=group, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, name in enumerate(_COLUMNS):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in mine:
            table.add_row(*_cells(row))
        print_whole(table)
    for line in _differences(result):
        console.print(line, highlight=False, markup=False)
    console.print(_LEGEND, highlight=False, markup=False)
