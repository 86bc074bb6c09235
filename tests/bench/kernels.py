"""``python -m tests.bench kernels``: runs ``bench_qmm`` and writes its results down.

``bench_qmm`` (``tests/bench/native``) is a C program that needs no model and no Python; it is built
with the native tests. This adds what a number depends on, and keeps everything in one JSON file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import environment
from .errors import BenchError
from .report import markdown_table

FORMAT = 1  # of the JSON file; raised when a field changes its meaning
_REPOSITORY = Path(__file__).resolve().parents[2]
_PROGRAM = Path("build") / "package" / "tests" / "native" / "bench" / "bench_qmm"
_LIMIT_S = 1800
_COLUMNS = {
    "type": "{type}",
    "isa": "{isa}",
    "threads": "{n_threads}",
    "rows": "{n_rows}",
    "ms": "{median_ms:.2f} ({best_ms:.2f})",
    "GB/s": "{gb_per_s:.1f}",
    "reading": "{read_gb_per_s:.1f}",
    "x reading": "{times_streaming:.2f}",
    "GOP/s": "{gop_per_s:.0f}",
    "of peak": "{of_peak:.0%}",
    "of limit": "{of_limit:.0%}",
    "prepare, us": "{prepare_us:.1f}",
}
_LEGEND = (
    "ms: median of the repeats, and the best in brackets; all else refers to the best. reading: "
    "how fast the same threads read the same packed bytes and do nothing else, measured right "
    "before. x reading: time over that of reading the packed weights once. of peak: share of the "
    "machine's multiplication rate. of limit: the least time possible, by reading or by "
    "multiplying, over the time. prepare: quantising the rows, on one thread."
)


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if something has to be fixed first."""
    arguments, passed_on = _parser().parse_known_args(argv)
    try:
        return _bench(arguments, passed_on)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _bench(arguments: argparse.Namespace, passed_on: list[str]) -> int:
    program: Path = arguments.program or _REPOSITORY / _PROGRAM
    if not program.is_file():
        raise BenchError(
            f"{program} is not a file",
            "make test builds it; or --program PATH of a bench_qmm you built",
        )
    limits, products, interference = _run(program, passed_on)
    result = {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": environment.describe(),
        "arguments": passed_on,
        "foreign_cpu_s": interference,
        "limits": limits,
        "products": products,
    }
    folder = arguments.out or Path("build") / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"kernels-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}.json"
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(_lines(limits, products)))
    print(f"\nwrote {out}")
    return 0 if all(product["is_right"] for product in products) else 1


def _run(
    program: Path, passed_on: list[str]
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
        raise BenchError(f"bench_qmm did not end in {_LIMIT_S} s", "fewer --types") from error
    if done.returncode not in (0, 1) or not done.stdout:
        raise BenchError("bench_qmm failed", "its own message, above, says why")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return (
        [line["limits"] for line in lines if "limits" in line],
        [line["product"] for line in lines if "product" in line],
        interference.foreign_seconds(),
    )


def _lines(limits: list[dict[str, Any]], products: list[dict[str, Any]]) -> list[str]:
    lines = [
        "- threads: {n_threads} ({isa}): memory {read_gb_per_s:.1f} GB/s, 8-bit products "
        "{int8_gop_per_s:.0f} GOP/s, float {float_gop_per_s:.0f} GOP/s".format(**limit)
        for limit in limits
    ]
    body = [[cell.format(**product) for cell in _COLUMNS.values()] for product in products]
    wrong = [
        "WRONG RESULTS: {type} {isa}, {n_rows} rows".format(**product)
        for product in products
        if not product["is_right"]
    ]
    return [*lines, "", *markdown_table(list(_COLUMNS), body), "", *wrong, _LEGEND]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench kernels",
        description="How close the matrix products come to what the machine can do. "
        "All other options go to bench_qmm: --threads 1,2 --rows 1,8 --types q4_0 --isa NAME "
        "--inputs N --mib N --repeats N.",
    )
    parser.add_argument("--program", type=Path, help=f"bench_qmm (default: {_PROGRAM})")
    parser.add_argument("--out", type=Path, help="folder of the results (default: build/bench)")
    return parser
