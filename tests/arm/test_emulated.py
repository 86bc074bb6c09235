"""The ARM kernels on emulated processors: right, chosen where they should be, and to be had for
Android and Apple. Needs a compiler and an emulator that scripts/arm_emulator.py fetches."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.arm import programs
from tests.arm.programs import arm_emulator

SME2 = ["sme2", "i8mm", "dotprod", "neon", "ref"]

# What each processor can run of matmul kernels, best first; the first is what it must get.
PROCESSORS = {
    "cortex-a53": ["neon", "ref"],
    "cortex-a76": ["dotprod", "neon", "ref"],
    "neoverse-v1": ["i8mm", "dotprod", "neon", "ref"],
    "neoverse-n2": ["i8mm", "dotprod", "neon", "ref"],
    "max-no-sme": ["i8mm", "dotprod", "neon", "ref"],
    "max-sme": SME2,
    "apple-m4": SME2,
    "sme128": SME2,
}
# The other ops have one kernel for all of them.
OTHER_OPS = ["argmax", "attention", "delta_net", "dynconv", "norm", "select", "ssm_conv"]
OTHER_ISAS = ["neon", "ref"]
OTHER_PROCESSORS = ["cortex-a53", "neoverse-v1", "apple-m4"]
TIMEOUT_S = 300


@pytest.fixture(scope="session")
def built() -> Path:
    """The programs for AArch64 Linux."""
    try:
        arm_emulator.qemu()
        arm_emulator.zig()
    except arm_emulator.EmulatorError as error:
        pytest.skip(f"no emulated ARM: {error}")
    return programs.programs(programs.aarch64_linux())


def emulate(
    built: Path, processor: str, *arguments: str, op: str = "qmm"
) -> subprocess.CompletedProcess[str]:
    """Runs the test of an op."""
    command = [*arm_emulator.emulator(processor), str(built / f"test_{op}"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def line_of(output: str, start: str) -> str:
    """The rest of the only line that starts so."""
    (line,) = (line for line in output.splitlines() if line.startswith(start))
    return line.removeprefix(start).strip()


@pytest.mark.parametrize("processor", PROCESSORS)
def test_kernels(built: Path, processor: str) -> None:
    result = emulate(built, processor, "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    assert line_of(result.stdout, "instruction sets tested:").split() == PROCESSORS[processor]
    assert "qmm: passed" in result.stdout


@pytest.mark.parametrize("processor", OTHER_PROCESSORS)
@pytest.mark.parametrize("op", OTHER_OPS)
def test_other_ops(built: Path, processor: str, op: str) -> None:
    result = emulate(built, processor, "--quick", op=op)
    assert result.returncode == 0, result.stdout + result.stderr
    assert line_of(result.stdout, "instruction sets tested:").split() == OTHER_ISAS
    assert f"{op}: passed" in result.stdout


@pytest.mark.parametrize("processor", PROCESSORS)
def test_dispatch(built: Path, processor: str) -> None:
    result = emulate(built, processor, "--dispatch")
    chosen = dict(line.split() for line in result.stdout.splitlines())
    formats = (programs.OPS / "qmm" / "formats.inc").read_text()
    assert len(chosen) == formats.count("DF2_QMM_FORMAT(")
    assert set(chosen.values()) == {PROCESSORS[processor][0]}
    for op in OTHER_OPS:
        other = emulate(built, processor, "--dispatch", op=op)
        assert other.stdout.split() == [op, OTHER_ISAS[0]]


@pytest.mark.parametrize(("processor", "isa"), [("cortex-a53", "sme2"), ("max-sme", "avx512")])
def test_missing_instruction_set_fails(built: Path, processor: str, isa: str) -> None:
    result = emulate(built, processor, "--quick", "--isa", isa)
    assert result.returncode == 1
    assert f'no kernel of instruction set "{isa}" can run here' in result.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares ARM with x86-64")
@pytest.mark.parametrize(
    "op", ["qmm", "attention", "delta_net", "dynconv", "norm", "select", "ssm_conv"]
)
def test_same_bits_as_x86(built: Path, op: str) -> None:
    x86 = programs.programs(programs.x86_host()) / f"test_{op}"
    result = subprocess.run([x86, "--quick"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    ours = emulate(built, "cortex-a76", "--quick", "--isa", "ref", op=op)
    checksum = "checksum of ref's results:"
    assert line_of(ours.stdout, checksum) == line_of(result.stdout, checksum)


@pytest.mark.parametrize("system", ["macos", "linux-android"])
def test_other_systems_compile(built: Path, system: str, tmp_path: Path) -> None:
    """Objects only: neither Apple's nor Android's libraries are here."""
    flags: list[str] = []
    if system == "linux-android":
        # zig has no headers of Android's C library; what kernels include, musl declares alike
        headers = arm_emulator.zig().parent / "lib" / "libc" / "include"
        for name in ("aarch64-linux-musl", "generic-musl", "any-linux-any"):
            flags += ["-isystem", str(headers / name)]
    target = programs.aarch64(system, *flags)
    programs.compile_all(target, programs.COMMON, tmp_path, "-O1")
