"""The systems that are compared, and how one run of each is made: one process, one prompt.

Every run starts a fresh process, for all systems alike, because llama.cpp's own tool knows no other
way. Processes never overlap: an idle OpenMP team spins for a while and would take a core from
whoever runs next to it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError
from tests.tools.worker_process import ask

from .upstream import Upstream

_LIMIT_S = 600  # for one run; a healthy one takes seconds
_BATCH = 2048  # llama.cpp's own default
PLAIN = "plain"
UPSTREAM = "llama.cpp"
OURS = "pydflash2"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all systems share. ``n_context``: tokens of filler ahead of every question."""

    target: Path
    drafter: Path
    n_predict: int
    n_threads: int
    n_ctx: int
    n_context: int


@dataclass(frozen=True, slots=True)
class System:
    """One row of the table. ``n_draft``: drafted tokens per cycle, -1 for automatic, 0 for none.

    ``knows_pair``: whether what earlier runs have learnt about the pair may be used.
    """

    kind: str
    n_draft: int
    knows_pair: bool = True

    @property
    def name(self) -> str:
        """How the results call it."""
        if self.kind == PLAIN:
            return self.kind
        first = "" if self.knows_pair else ", first text"
        return f"{self.kind} {'auto' if self.n_draft < 0 else f'n={self.n_draft}'}{first}"


@dataclass(frozen=True, slots=True)
class Run:
    """What one process did on one prompt.

    ``n_decoded`` tokens took ``decode_s`` seconds, prefill and loading excluded. ``tokens`` is None
    for a system that prints text only. Phases that a system does not report are missing from
    ``phases_s``. ``drafted_at[i]`` and ``accepted_at[i]`` count how often position i of a block was
    drafted, and kept; llama.cpp prints the latter as shares, so that there they are not quite
    whole.
    """

    tokens: list[int] | None
    text: bytes | None
    n_decoded: int
    decode_s: float
    phases_s: dict[str, float]
    n_cycles: int
    n_drafted: int
    n_accepted: int
    drafted_at: list[float]
    accepted_at: list[float]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt in the target's chat template, as text and as tokens."""

    text: str
    tokens: list[int]


def run(system: System, prompt: Rendered, settings: Settings, upstream: Upstream | None) -> Run:
    """Runs one system on one prompt."""
    if system.kind == UPSTREAM:
        if upstream is None:
            raise ValueError("a run of llama.cpp's own drafting needs its build")
        return _run_upstream(upstream, system, prompt, settings)
    reply = ask_worker(
        task=system.kind,
        target=str(settings.target),
        drafter=str(settings.drafter),
        prompt_tokens=prompt.tokens,
        n_predict=settings.n_predict,
        n_threads=settings.n_threads,
        n_ctx=settings.n_ctx,
        n_draft=system.n_draft,
        knows_pair=system.knows_pair,
    )
    return Run(
        tokens=reply["tokens"],
        text=None,
        n_decoded=reply["n_decoded"],
        decode_s=reply["decode_s"],
        phases_s=reply["phases_s"],
        n_cycles=reply["n_cycles"],
        n_drafted=reply.get("n_drafted", 0),
        n_accepted=reply.get("n_accepted", 0),
        drafted_at=_used(reply.get("drafted_at", [])),
        accepted_at=_used(reply.get("accepted_at", [])),
    )


def _used(counts: list[int]) -> list[float]:
    """The library's fixed-size array without the positions that no block reached."""
    n = max((i + 1 for i, count in enumerate(counts) if count), default=0)
    return [float(count) for count in counts[:n]]


def ask_worker(**request: Any) -> dict[str, Any]:
    """Has one task done by the worker, in a new process."""
    return ask("bench.worker", request)


def upstream_command(
    upstream: Upstream, system: System, prompt: Path, settings: Settings
) -> list[str]:
    """The command line of llama.cpp's own tool. ``prompt`` is the file with the prompt.

    It decodes a prompt in a single batch, which must hold all of it.

    Sampling is cut down to one top-k sampler with k = 1, the cheapest way it has to pick the most
    probable token; its default chain would charge it for samplers that greedy decoding has no use
    for. The log level is the lowest at which it prints its acceptance statistics.
    """
    threads = str(settings.n_threads)
    return [
        str(upstream.speculative),
        *("--model", str(settings.target)),
        *("--spec-draft-model", str(settings.drafter)),
        *("--spec-type", "draft-dflash"),
        *("--spec-draft-n-max", str(system.n_draft)),
        # It stops after the first cycle that takes it *past* this number.
        *("--predict", str(settings.n_predict - 1)),
        *("--ctx-size", str(settings.n_ctx)),
        *("--batch-size", str(max(settings.n_ctx, _BATCH))),
        *("--threads", threads),
        *("--threads-batch", threads),
        *("--spec-draft-threads", threads),
        *("--spec-draft-threads-batch", threads),
        *("--samplers", "top_k", "--top-k", "1", "--temp", "0", "--seed", "1"),
        *("--no-escape", "--log-colors", "off", "--verbosity", "4"),
        *("--file", str(prompt)),
    ]


def _run_upstream(upstream: Upstream, system: System, prompt: Rendered, settings: Settings) -> Run:
    # Settings of the person's own llama.cpp would change what is measured.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
    with tempfile.TemporaryDirectory() as folder:
        # A file, because a command line holds no long prompt. The tool drops one final line break.
        file = Path(folder) / "prompt.txt"
        file.write_bytes(prompt.text.encode() + b"\n")
        command = upstream_command(upstream, system, file, settings)
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, env=environment, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise ToolError(
                f"llama.cpp's tool did not end within {_LIMIT_S} s",
                "try a smaller --tokens or --context",
            ) from error
    log = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        lines = log.strip().splitlines()
        # Lines of level "E" say why; an assertion has no level and comes last.
        told = [line for line in lines if " E " in line] or lines[-6:]
        raise ToolError(
            "\n".join([f"llama.cpp's tool failed (exit status {done.returncode}):", *told]),
            "check that the drafter is a dflash GGUF for this target; --no-upstream leaves it out",
        )
    found = parse_upstream(done.stdout, log, prompt=prompt, n_max=system.n_draft)
    return without_verify(found) if settings.n_context > 0 else found


_NUMBER = r"([0-9.]+)"
_STATISTICS = re.compile(
    r"statistics\s+draft-dflash: #calls\(b,g,a\) =\s*\d+\s+\d+\s+(?P<cycles>\d+), "
    r"#gen drafts =\s*\d+, #acc drafts =\s*\d+, "
    r"#gen tokens =\s*(?P<drafted>\d+), #acc tokens =\s*(?P<accepted>\d+)"
    r"(?:, #mean acc len = [0-9.]+, #acc rate/pos = \((?P<rates>[0-9., ]*)\))?"
    r"(?:, dur\(b,g,a\) = [0-9.]+, (?P<draft_ms>[0-9.]+), [0-9.]+ ms)?"
)


def parse_upstream(stdout: bytes, log: str, *, prompt: Rendered, n_max: int) -> Run:
    """Reads llama.cpp's output: the text is on stdout, all figures are in the log.

    Its log times the drafter's block passes and the target's passes. It does not time the passes
    that feed hidden states to the drafter, so these are part of `other`; and it sums up the
    target's time from loading on, so `verify` is that sum less the whole prefill. A two-token probe
    of the context at start-up is in the sum and the feeding of the prompt is in the prefill: after
    a short prompt each is about 1 % of `verify`, and they have opposite signs; after a long one the
    latter is seconds, see without_verify().
    """
    encoded = _search(rf"encoded\s+(\d+) tokens in\s+{_NUMBER} seconds", log)
    if int(encoded[1]) != len(prompt.tokens):
        raise ToolError(
            f"llama.cpp's tool read the prompt as {encoded[1]} tokens instead of "
            f"{len(prompt.tokens)}",
            "build the tools and llama-cpp-python from the same llama.cpp",
        )
    decoded = _search(rf"decoded\s+(\d+) tokens in\s+{_NUMBER} seconds", log)
    batches = _search(rf"prompt eval time =\s*{_NUMBER} ms", log)
    singles = _search(rf":\s+eval time =\s*{_NUMBER} ms", log)
    sampling = _search(rf"sampling time =\s*{_NUMBER} ms", log)
    statistics = _STATISTICS.search(log)
    if statistics is None or statistics["draft_ms"] is None:
        raise _unreadable("the line of drafting statistics")
    prefill_s = float(encoded[2])
    decode_s = float(decoded[2])
    draft_s = float(statistics["draft_ms"]) / 1e3
    accept_s = float(sampling[1]) / 1e3
    verify_s = max(0.0, (float(batches[1]) + float(singles[1])) / 1e3 - prefill_s)
    n_cycles = int(statistics["cycles"])
    rates = [float(rate) for rate in (statistics["rates"] or "").split(",") if rate.strip()]
    return Run(
        tokens=None,
        text=_text(stdout, prompt.text),
        n_decoded=int(decoded[1]),
        decode_s=decode_s,
        phases_s={
            "prefill": prefill_s,
            "draft": draft_s,
            "verify": verify_s,
            "accept": accept_s,
            "other": max(0.0, decode_s - draft_s - verify_s - accept_s),
        },
        n_cycles=n_cycles,
        n_drafted=int(statistics["drafted"]),
        n_accepted=int(statistics["accepted"]),
        drafted_at=[float(n_cycles)] * n_max,
        accepted_at=[rate * n_cycles for rate in rates],
    )


def without_verify(run: Run) -> Run:
    """The run with `verify` taken for unknown, as it is behind a long prompt, and left in `other`.

    Feeding such a prompt to the drafter takes as long as many target passes, and llama.cpp's log
    has it in the one sum but not in the other.
    """
    phases = dict(run.phases_s)
    phases["other"] = run.decode_s - phases["draft"] - phases["accept"]
    del phases["verify"]
    return replace(run, phases_s=phases)


def _search(pattern: str, log: str) -> re.Match[str]:
    found = re.search(pattern, log)
    if found is None:
        raise _unreadable(f"/{pattern}/")
    return found


def _unreadable(what: str) -> ToolError:
    return ToolError(
        f"llama.cpp's log does not hold {what}",
        "the format differs from the version this was written for; update bench/systems.py",
    )


def _text(stdout: bytes, prompt: str) -> bytes:
    """The generated text: what stands between the repeated prompt and the blank lines."""
    head = b"\n\n" + prompt.encode()
    tail = b"\n\n\n\n"
    if not stdout.startswith(head) or not stdout.endswith(tail):
        raise _unreadable("the prompt, the text and four line breaks on stdout")
    return stdout[len(head) : -len(tail)]


def run_llama_bench(upstream: Upstream, settings: Settings) -> float:
    """Tokens per second of plain decoding as llama.cpp's own benchmark sees it: a second opinion.

    It decodes random tokens behind ``n_context`` others and picks none, so it comes out a little
    higher.
    """
    command = [
        str(upstream.bench),
        *("--model", str(settings.target), "--threads", str(settings.n_threads)),
        *("--n-prompt", "0", "--n-gen", str(settings.n_predict), "--repetitions", "1"),
        *("--n-depth", str(settings.n_context)),
        *("--output", "json"),
    ]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_LIMIT_S)
    try:
        return float(json.loads(done.stdout)[0]["avg_ts"])
    except (ValueError, LookupError) as error:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ToolError(
            f"llama-bench failed: {' '.join(tail)}", "--no-upstream leaves llama.cpp's tools out"
        ) from error
