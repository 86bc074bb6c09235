"""Instructions that each kernel executes, counted under emulation: a guide where no ARM machine is
at hand, not a measure of time.

Usage: python -m tests.arm.instruction_counts [--types q4_0,...] [--rows 1,8] [--isas neon,...]

Per block: 16 outputs x 32 inputs of all rows, with what recurs for every block. Per call: the rest.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.arm import programs
from tests.arm.programs import arm_emulator

PROCESSOR = "apple-m4"  # runs all of them, with the vector length of the machines that are sold
SIZES = (512, 1024)  # inputs


def function_ranges(program: Path) -> dict[str, tuple[int, int]]:
    """Name -> address and size of every function, from an ELF file's symbol table."""
    data = program.read_bytes()
    sections_at, entry_size, n_sections = (
        struct.unpack_from("<Q", data, 40)[0],
        *struct.unpack_from("<HH", data, 58),
    )
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * entry_size)
        for i in range(n_sections)
    ]
    symbol_table = 2  # SHT_SYMTAB
    (_, _, _, _, start, size, link, *_), *_ = (h for h in headers if h[1] == symbol_table)
    names_at = headers[link][4]
    functions = {}
    for at in range(start, start + size, 24):
        name_at, info, _, _, value, length = struct.unpack_from("<IBBHQQ", data, at)
        if info & 15 == 2:  # STT_FUNC
            name = data[names_at + name_at : data.index(b"\0", names_at + name_at)].decode()
            functions[name] = (value, length)
    return functions


def count(program: Path, ranges: list[tuple[int, int]], arguments: list[str]) -> int:
    """Instructions executed in the address ranges by one run of the program."""
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        options = ["-one-insn-per-tb", "-d", "exec,nochain", "-D", log.name]
        options += ["-dfilter", ",".join(f"0x{start:x}+0x{size:x}" for start, size in ranges)]
        command = [*arm_emulator.emulator(PROCESSOR, *options), str(program), *arguments]
        subprocess.run(command, check=True, timeout=120)
        with open(log.name, encoding="utf-8") as lines:
            return sum(line.startswith("Trace") for line in lines)


@dataclass(frozen=True)
class Cost:
    """Of one kernel with one number of rows."""

    per_block: float
    per_call: float


def cost(program: Path, isa: str, type_name: str, n_rows: int) -> Cost:
    """Two sizes tell the blocks' part from the call's."""
    functions = function_ranges(program)
    names = [f"{part}_{type_name}_{isa}" for part in ("multiply", "start", "stream")]
    if isa == "sme2":  # which leaves few rows to i8mm
        names.append(f"multiply_{type_name}_i8mm")
    ranges = [functions[name] for name in names if name in functions]
    if not ranges:
        raise SystemExit(f"error: no kernel of type {type_name} for {isa}")
    small, large = (
        count(program, ranges, [type_name, isa, str(n_rows), str(n_in)]) for n_in in SIZES
    )
    n_blocks = (SIZES[1] - SIZES[0]) / 32
    per_block = (large - small) / n_blocks
    return Cost(per_block, small - per_block * SIZES[0] / 32)


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the instructions of the ARM kernels.")
    parser.add_argument("--types", default="q4_0,q4_K,q6_K,q8_0", help="ggml's names")
    parser.add_argument("--rows", default="1,8", help="rows of activations")
    parser.add_argument("--isas", default="neon,dotprod,i8mm,sme2")
    arguments = parser.parse_args()
    try:
        program = programs.programs(programs.aarch64_linux()) / "one_call"
        arm_emulator.qemu()
    except arm_emulator.EmulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("| type | isa | rows | per block | per block and row | per call |")
    print("|---|---|--:|--:|--:|--:|")
    for type_name in arguments.types.split(","):
        for isa in arguments.isas.split(","):
            for n_rows in map(int, arguments.rows.split(",")):
                c = cost(program, isa, type_name, n_rows)
                print(
                    f"| {type_name} | {isa} | {n_rows} | {c.per_block:.0f} "
                    f"| {c.per_block / n_rows:.1f} | {c.per_call:.0f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
