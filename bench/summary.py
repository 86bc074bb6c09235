"""Turns the runs into rows: medians and spread per system, and whether the text is the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .systems import OURS, PLAIN, UPSTREAM, Run, System

PHASES = ("prefill", "draft", "verify", "accept", "other")


@dataclass(frozen=True, slots=True)
class Reference:
    """Plain greedy output of one prompt: tokens, their bytes, and how clear each choice was.

    ``gaps[i]`` is how far the logit of token i lay above the runner-up's.
    """

    tokens: list[int]
    pieces: list[bytes]
    gaps: list[float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text leaves plain's: the token's index, what each says, and plain's gap there."""

    index: int
    expected: str
    found: str
    gap: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """One run with its place in the experiment."""

    system: System
    group: str
    prompt: str
    repeat: int
    run: Run
    difference: Difference | None
    foreign_cpu_s: float | None

    def as_json(self) -> dict[str, Any]:
        """The record as it goes into the results; the text is left out, its difference is not."""
        run = asdict(self.run)
        text = run.pop("text")
        run["text"] = None if text is None else text.decode(errors="replace")
        return {
            "system": self.system.name,
            "group": self.group,
            "prompt": self.prompt,
            "repeat": self.repeat,
            **run,
            "difference": None if self.difference is None else asdict(self.difference),
            "foreign_cpu_s": self.foreign_cpu_s,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one group of prompts.

    Speeds are those of the whole group (all tokens over all seconds) in one repeat;
    ``tokens_per_s`` and ``ratio`` are medians over the repeats, with the smallest and largest
    beside them. ``ratio`` compares with plain in the same repeat. ``phases_ms`` is per generated
    token, except ``prefill``, which is per prompt. ``outside`` is the share of the decoding time
    spent in neither model, None where nobody timed the target's passes.
    """

    system: str
    group: str
    n_repeats: int
    tokens_per_s: float
    tokens_per_s_range: tuple[float, float]
    ratio: float | None
    ratio_range: tuple[float, float] | None
    phases_ms: dict[str, float]
    outside: float | None
    is_outside_bound: bool
    acceptance_length: float | None
    acceptance: float | None
    accepted_at: list[float]
    n_prompts: int
    n_different: int
    largest_gap: float | None


def compare(run: Run, reference: Reference) -> Difference | None:
    """Finds the first token where a run and plain decoding part, within the tokens both have.

    A system that was told to stop after as many tokens may still bring a few more; one that stops
    earlier differs where it stops. Text without token ids is compared by the bytes of plain's
    tokens.
    """
    if run.tokens is not None:
        for index, expected in enumerate(reference.tokens):
            found = run.tokens[index] if index < len(run.tokens) else None
            if found != expected:
                shown = "nothing" if found is None else f"token {found}"
                return _difference(reference, index, shown)
        return None
    text = run.text or b""
    offset = 0
    for index, piece in enumerate(reference.pieces):
        found_bytes = text[offset : offset + len(piece)]
        # llama.cpp's tool prints nothing for the token that ends the generation.
        is_silent_end = index == len(reference.pieces) - 1 and offset == len(text)
        if found_bytes != piece and not is_silent_end:
            shown = repr(found_bytes.decode(errors="replace")) if found_bytes else "nothing"
            return _difference(reference, index, shown)
        offset += len(piece)
    return None


def _difference(reference: Reference, index: int, found: str) -> Difference:
    expected = repr(reference.pieces[index].decode(errors="replace"))
    return Difference(index=index, expected=expected, found=found, gap=reference.gaps[index])


def summarise(records: list[Record]) -> list[Row]:
    """The rows, in the order in which the systems first ran, group by group.

    Only repeats in which a system saw every prompt of its group count, unless there is none: then
    an interrupted run would be compared with one on other prompts.
    """
    by_key: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_key[record.group, record.system.name].append(record)
    plain_speed: dict[tuple[str, int], float] = {}
    rows = []
    for (group, name), mine in sorted(by_key.items(), key=lambda item: item[0][1] != PLAIN):
        repeats = _whole_repeats(mine)
        speeds = {
            repeat: sum(r.run.n_decoded for r in runs) / sum(r.run.decode_s for r in runs)
            for repeat, runs in repeats.items()
        }
        if name == PLAIN:
            plain_speed.update({(group, repeat): speed for repeat, speed in speeds.items()})
        ratios = [
            speed / plain_speed[group, repeat]
            for repeat, speed in speeds.items()
            if (group, repeat) in plain_speed
        ]
        rows.append(_row(name, group, list(speeds.values()), ratios, repeats))
    first_seen = list(dict.fromkeys((r.group, r.system.name) for r in records))
    groups = list(dict.fromkeys(r.group for r in records))
    rows.sort(key=lambda row: (groups.index(row.group), first_seen.index((row.group, row.system))))
    return rows


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest row of pydflash2 against the fastest of llama.cpp's own drafting, in a group."""

    group: str
    ours: str
    upstream: str
    ratio: float


def best(rows: list[Row]) -> list[Best]:
    """One comparison for every group in which both took part."""
    found = []
    for group in dict.fromkeys(row.group for row in rows):
        fastest = [_fastest(rows, group, kind) for kind in (OURS, UPSTREAM)]
        ours, upstream = fastest
        if ours is not None and upstream is not None:
            ratio = ours.tokens_per_s / upstream.tokens_per_s
            found.append(Best(group, ours.system, upstream.system, ratio))
    return found


def _fastest(rows: list[Row], group: str, kind: str) -> Row | None:
    mine = [row for row in rows if row.group == group and row.system.startswith(kind)]
    return max(mine, key=lambda row: row.tokens_per_s, default=None)


def _whole_repeats(records: list[Record]) -> dict[int, list[Record]]:
    repeats: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        repeats[record.repeat].append(record)
    largest = max(len(runs) for runs in repeats.values())
    return {repeat: runs for repeat, runs in repeats.items() if len(runs) == largest}


def _row(
    name: str,
    group: str,
    speeds: list[float],
    ratios: list[float],
    repeats: dict[int, list[Record]],
) -> Row:
    records = [record for runs in repeats.values() for record in runs]
    runs = [record.run for record in records]
    n_decoded = sum(run.n_decoded for run in runs)
    decode_s = sum(run.decode_s for run in runs)
    totals = {
        phase: sum(run.phases_s.get(phase, 0.0) for run in runs)
        for phase in PHASES
        if any(phase in run.phases_s for run in runs)
    }
    n_cycles = sum(run.n_cycles for run in runs)
    n_drafted = sum(run.n_drafted for run in runs)
    n_accepted = sum(run.n_accepted for run in runs)
    differences = [record.difference for record in records if record.difference is not None]
    gaps = [difference.gap for difference in differences if difference.gap is not None]
    return Row(
        system=name,
        group=group,
        n_repeats=len(repeats),
        tokens_per_s=median(speeds),
        tokens_per_s_range=(min(speeds), max(speeds)),
        ratio=median(ratios) if ratios else None,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        phases_ms={
            phase: 1e3 * total / (len(runs) if phase == "prefill" else n_decoded)
            for phase, total in totals.items()
        },
        outside=(
            (totals.get("accept", 0.0) + totals["other"]) / decode_s if "verify" in totals else None
        ),
        # llama.cpp's log does not time the passes that feed the drafter: they are in `other`.
        is_outside_bound=name.startswith(UPSTREAM),
        acceptance_length=(n_accepted + n_cycles) / n_cycles if n_cycles else None,
        acceptance=n_accepted / n_drafted if n_drafted else None,
        accepted_at=_accepted_at(runs),
        n_prompts=len({record.prompt for record in records}),
        n_different=len({record.prompt for record in records if record.difference is not None}),
        largest_gap=max(gaps) if gaps else None,
    )


def _accepted_at(runs: list[Run]) -> list[float]:
    """Acceptance per position: of the blocks that drafted it, the share that kept it."""
    width = max(len(run.drafted_at) for run in runs)
    shares = []
    for i in range(width):
        n_drafted = sum(run.drafted_at[i] for run in runs if i < len(run.drafted_at))
        n_accepted = sum(run.accepted_at[i] for run in runs if i < len(run.accepted_at))
        shares.append(n_accepted / n_drafted if n_drafted else 0.0)
    return shares
