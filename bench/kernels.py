"""``python -m bench kernels``: runs a bench of native code and writes its results down.

``bench_qmm``, ``bench_attention`` and ``bench_drafter_ops`` (``bench/native``) are native
programs that need no Python; they are built with the native tests. This adds what a number depends
on, and keeps everything in one JSON file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError
from tests.tools.worker_process import REPOSITORY

from . import environment
from .report import markdown_table
from .results import RESULTS, now, result_folder, stamp, write

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_PROGRAMS = Path("build") / "package" / "tests" / "native" / "bench"
_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class _Op:
    """A program, and how its results are kept and shown."""

    program: str
    line: str  # the key of its JSON lines
    field: str  # of the file
    columns: dict[str, str]
    limits: str
    legend: str
    needs_drafter: bool = False


_COMMON_COLUMNS = {
    "type": "{type}",
    "isa": "{isa}",
    "threads": "{n_threads}",
    "rows": "{n_rows}",
    "ms": "{median_ms:.2f} ({best_ms:.2f})",
    "GB/s": "{gb_per_s:.1f}",
    "reading": "{read_gb_per_s:.1f}",
    "GOP/s": "{gop_per_s:.0f}",
    "of peak": "{of_peak:.0%}",
    "of limit": "{of_limit:.0%}",
}
_COMMON_LEGEND = (
    "ms: median of the repeats, and the best in brackets; all else refers to the best. reading: "
    "how fast the same threads read the same bytes and do nothing else, measured right before. "
    "of peak: share of the machine's multiplication rate. of limit: the least time possible, by "
    "reading once or by multiplying, over the time. "
)
_OPS = {
    "matmul": _Op(
        program="bench_qmm",
        line="product",
        field="products",
        columns=_COMMON_COLUMNS
        | {"x reading": "{times_streaming:.2f}", "prepare, us": "{prepare_us:.1f}"},
        limits="memory {read_gb_per_s:.1f} GB/s, 8-bit products {int8_gop_per_s:.0f} GOP/s, "
        "float {float_gop_per_s:.0f} GOP/s",
        legend=_COMMON_LEGEND
        + "x reading: time over that of reading the packed weights once. prepare: quantising "
        "the rows, on one thread.",
    ),
    "attention": _Op(
        program="bench_attention",
        line="attention",
        field="attention",
        columns={"keys": "{n_keys}"} | _COMMON_COLUMNS,
        limits="float {float_gop_per_s:.0f} GOP/s",
        legend=_COMMON_LEGEND
        + "rows: queries times heads that share a K/V head. keys: of the cache, in type.",
    ),
    "drafter": _Op(
        program="bench_drafter_ops",
        line="operation",
        field="operations",
        columns={
            "operation": "{type}",
            "isa": "{isa}",
            "threads": "{n_threads}",
            "numbers": "{size}",
            "rows": "{n_rows}",
            "us": "{best_us:.2f} ({median_us:.2f})",
            "against": "{against}",
            "their us": "{their_best_us:.2f} ({their_median_us:.2f})",
            "times as fast": "{times:.1f}",
        },
        limits="",
        legend="us: best of the repeats, and the median in brackets. numbers: of a row. convolve, "
        "finish, select: one fused operation against the same one as ggml's own nodes, on the same "
        "threads. argmax: on one thread, against reading its input once.",
        needs_drafter=True,
    ),
}


def bench(arguments: argparse.Namespace) -> int:
    """Runs the bench; raises ToolError if something has to be fixed first."""
    op = _OPS[arguments.op]
    program = _program(op, arguments.program)
    passed_on: list[str] = arguments.passed_on
    if op.needs_drafter and "--drafter" not in passed_on:
        passed_on = [*passed_on, "--drafter", str(environment.DEMO_DRAFTER)]
    environment.warn_if_busy()
    limits, results, interference = _run(op, program, passed_on)
    result = {
        "format": FORMAT,
        "date": now(),
        "environment": environment.describe(),
        "arguments": passed_on,
        "foreign_cpu_s": interference,
        "limits": limits,
        op.field: results,
    }
    folder = result_folder(arguments.out or RESULTS)
    name = f"kernels-{arguments.op}-{stamp()}.json"
    write(folder, {name: json.dumps(result, indent=1) + "\n"})
    print("\n".join(_lines(op, limits, results)))
    print(f"\nwrote {folder / name}")
    return 0 if all(one["is_right"] for one in results) else 1


def matmul_program(given: Path | None) -> Path:
    """The bench_qmm to run: the given one, or the usual one."""
    return _program(_OPS["matmul"], given)


def machine_limits(program: Path, n_threads: int) -> dict[str, Any]:
    """What the machine does at most, as a bench_qmm measures it: the fields are those of
    `_Op.limits`. Its shortest product comes along, unused."""
    shortest = ("--types", "q4_0", "--rows", "1", "--mib", "1", "--repeats", "5")
    limits, _, _ = _run(_OPS["matmul"], program, ["--threads", str(n_threads), *shortest])
    return limits[0]


def _program(op: _Op, given: Path | None) -> Path:
    program = given or REPOSITORY / _PROGRAMS / op.program
    if not program.is_file():
        raise ToolError(
            f"{program} is not a file",
            f"make test builds it; or --program PATH of a {op.program} you built",
        )
    return program


def _run(
    op: _Op, program: Path, passed_on: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float | None]:
    interference = environment.Interference()
    try:
        done = subprocess.run(
            [str(program), "--json", *passed_on],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{op.program} did not end in {_LIMIT_S} s", "fewer --types") from error
    if done.returncode not in (0, 1) or not done.stdout:
        raise ToolError(f"{op.program} failed", "its own message, above, says why")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return (
        [line["limits"] for line in lines if "limits" in line],
        [line[op.line] for line in lines if op.line in line],
        interference.foreign_seconds(),
    )


def _lines(op: _Op, limits: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[str]:
    lines = [f"- threads: {{n_threads}} ({{isa}}): {op.limits}".format(**limit) for limit in limits]
    body = [[cell.format(**one) for cell in op.columns.values()] for one in results]
    wrong = [
        "WRONG RESULTS: {type} {isa}, {n_rows} rows".format(**one)
        for one in results
        if not one["is_right"]
    ]
    return [*lines, "", *markdown_table(list(op.columns), body), "", *wrong, op.legend]


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line; what it does not know is for the program, in ``passed_on``."""
    parser = argparse.ArgumentParser(
        prog="python -m bench kernels",
        description="How close the matrix products, or attention, come to what the machine can do; "
        "and what fusing the drafter's operations gains. "
        "All other options go to the program: --threads 1,2 --rows 1,8 --types q4_0 --isa NAME "
        "--mib N --repeats N; bench_qmm also takes --inputs N, bench_attention --keys 256,8192 "
        "--size N --heads N, and bench_drafter_ops --drafter FILE (default: the demo's).",
    )
    parser.add_argument("--op", choices=list(_OPS), default="matmul", help="what to measure")
    parser.add_argument("--program", type=Path, help=f"the program (default: in {_PROGRAMS})")
    parser.add_argument("--out", type=Path, help="folder of the results (default: build/bench)")
    arguments, passed_on = parser.parse_known_args(argv)
    arguments.passed_on = passed_on
    return arguments
