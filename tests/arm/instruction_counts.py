"""Instructions that each kernel executes, counted under emulation: a guide where no ARM machine is
at hand, not a measure of time.

Usage: python -m tests.arm.instruction_counts [--types q4_0,...] [--rows 1,8] [--isas neon,...]
       python -m tests.arm.instruction_counts --attention [--types f16,...] [--rows 1,6] [--size 64]

Matmul, per block: 16 outputs x 32 inputs of all rows, with what recurs for every block; per call:
the rest. Attention, per tile: 64 keys and their values for all rows.
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
TILE = 64  # keys
LANES = 4  # floats that one instruction multiplies


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


def attention_cost(program: Path, type_name: str, n_rows: int, size: int) -> int:
    """Of one tile: the second one's, which the whole program takes more with two."""
    functions = function_ranges(program).values()
    first = min(start for start, _ in functions)
    everything = [(first, max(start + length for start, length in functions) - first)]
    arguments = [type_name, "neon", str(n_rows), str(size)]
    one, two = (count(program, everything, [*arguments, str(n * TILE)]) for n in (1, 2))
    return two - one


def print_attention(folder: Path, types: list[str], rows: list[int], size: int) -> None:
    """The table of the attention kernel."""
    print(f"head size {size}: {2 * TILE * size // LANES} multiplications per row and tile\n")
    print("| keys and values | rows | per tile | per tile and row |")
    print("|---|--:|--:|--:|")
    for type_name in types:
        for n_rows in rows:
            n = attention_cost(folder / "one_attention", type_name, n_rows, size)
            print(f"| {type_name} | {n_rows} | {n} | {n / n_rows:.0f} |", flush=True)


def print_matmul(folder: Path, types: list[str], rows: list[int], isas: list[str]) -> None:
    """The table of the matmul kernels."""
    print("| type | isa | rows | per block | per block and row | per call |")
    print("|---|---|--:|--:|--:|--:|")
    for type_name in types:
        for isa in isas:
            for n_rows in rows:
                c = cost(folder / "one_call", isa, type_name, n_rows)
                print(
                    f"| {type_name} | {isa} | {n_rows} | {c.per_block:.0f} "
                    f"| {c.per_block / n_rows:.1f} | {c.per_call:.0f} |",
                    flush=True,
                )


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the instructions of the ARM kernels.")
    parser.add_argument("--attention", action="store_true", help="attention instead of matmul")
    parser.add_argument("--types", help="ggml's names")
    parser.add_argument("--rows", help="rows of activations, or queries times heads")
    parser.add_argument("--isas", default="neon,dotprod,i8mm,sme2", help="of matmul")
    parser.add_argument("--size", type=int, default=64, help="of an attention head")
    arguments = parser.parse_args()
    try:
        folder = programs.programs(programs.aarch64_linux())
        arm_emulator.qemu()
    except arm_emulator.EmulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    is_attention = arguments.attention
    types = (arguments.types or ("f16,q8_0" if is_attention else "q4_0,q4_K,q6_K,q8_0")).split(",")
    rows = [int(n) for n in (arguments.rows or ("1,3,6,24" if is_attention else "1,8")).split(",")]
    if is_attention:
        print_attention(folder, types, rows, arguments.size)
    else:
        print_matmul(folder, types, rows, arguments.isas.split(","))
    return 0


if __name__ == "__main__":
    sys.exit(main())
