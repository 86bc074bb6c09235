"""Builds the C programs that test the kernels under an emulator; once per state of the sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import arm_emulator as arm_emulator  # noqa: E402

OPS = ROOT / "native" / "ops"
HARNESS = ROOT / "tests" / "native" / "ops"
ARM = ROOT / "tests" / "arm"
N_KEPT = 5  # builds, this one included

COMMON = [
    *(OPS / "argmax" / f"{name}.c" for name in ("dispatch", "ref")),
    *(OPS / "attention" / f"{name}.c" for name in ("dispatch", "ref")),
    OPS / "common" / "cpu.c",
    *(OPS / "delta_net" / f"{name}.c" for name in ("dispatch", "ref")),
    *(OPS / "dynconv" / f"{name}.c" for name in ("dispatch", "ref")),
    *(OPS / "norm" / f"{name}.c" for name in ("dispatch", "ref")),
    *(
        OPS / "qmm" / f"{name}.c"
        for name in ("dispatch", "formats", "layouts", "pack", "ref", "unpack")
    ),
    *(OPS / "select" / f"{name}.c" for name in ("dispatch", "ref")),
    *(OPS / "ssm_conv" / f"{name}.c" for name in ("dispatch", "ref")),
]
DATA = ("attention_data", "dynconv_data", "isas", "logits_data", "qmm_data", "walk_data")
HARNESS_SOURCES = [HARNESS / f"{name}.c" for name in ("harness", "watch", *DATA)]
PROGRAMS = [
    *(
        HARNESS / f"{name}.c"
        for name in (
            "test_argmax",
            "test_attention",
            "test_delta_net",
            "test_dynconv",
            "test_norm",
            "test_qmm",
            "test_select",
            "test_ssm_conv",
        )
    ),
    *(ARM / f"{name}.c" for name in ("one_attention", "one_call")),
]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", f"-I{ROOT / 'native'}"]
FLAGS += ["-Wall", "-Wextra", "-Werror"]

ARM_KERNELS = {
    "argmax/arm_neon": "-mcpu=generic",
    "attention/arm_neon": "-mcpu=generic",
    "delta_net/arm_neon": "-mcpu=generic",
    "dynconv/arm_neon": "-mcpu=generic",
    "norm/arm_neon": "-mcpu=generic",
    "qmm/arm_neon": "-mcpu=generic",
    "qmm/arm_dotprod": "-mcpu=generic+dotprod",
    "qmm/arm_i8mm": "-mcpu=generic+dotprod+i8mm",
    "qmm/arm_sme2": "-mcpu=generic+sme2",
    "qmm/arm_sme2_prepare": "-mcpu=generic",
    "select/arm_neon": "-mcpu=generic",
    "ssm_conv/arm_neon": "-mcpu=generic",
}
AVX2 = "-mavx2 -mfma -mf16c"
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni"
X86_KERNELS = {
    "argmax/x86_avx2": AVX2,
    "argmax/x86_avx512": AVX512,
    "attention/x86_avx2": AVX2,
    "attention/x86_avx512": AVX512,
    "delta_net/x86_avx2": AVX2,
    "delta_net/x86_avx512": AVX512,
    "dynconv/x86_avx2": AVX2,
    "dynconv/x86_avx512": AVX512,
    "norm/x86_avx2": AVX2,
    "norm/x86_avx512": AVX512,
    "qmm/x86_avx2": AVX2,
    "qmm/x86_avx2vnni": f"{AVX2} -mavxvnni",
    "qmm/x86_avx512": AVX512,
    "select/x86_avx2": AVX2,
    "select/x86_avx512": AVX512,
    "ssm_conv/x86_avx2": AVX2,
    "ssm_conv/x86_avx512": AVX512,
}


@dataclass(frozen=True)
class Target:
    """A name, the compiler's command, and the kernels (files in native/ops) with their flags."""

    name: str
    command: tuple[str, ...]
    kernels: dict[str, str]
    support: tuple[Path, ...] = ()


def aarch64(system: str, *flags: str) -> Target:
    """AArch64, with zig's name of the system."""
    arm_emulator.compiler()  # sets where it caches
    command = (str(arm_emulator.zig()), "cc", "-target", f"aarch64-{system}", "-DDF2_HAVE_SME2")
    return Target(system, command + flags, ARM_KERNELS)


def aarch64_linux() -> Target:
    """What the emulator runs."""
    target = aarch64("linux-musl", "-static")
    return Target(target.name, target.command, ARM_KERNELS, (ARM / "sme_support.S",))


def x86_host() -> Target:
    """An x86-64 machine's own compiler."""
    return Target("x86_64", ("cc",), X86_KERNELS)


def run(command: list[str]) -> None:
    """Runs the compiler."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr[:4000]}")


def object_of(source: Path, folder: Path) -> Path:
    """Where a source's object goes: ops have files of the same name."""
    return folder / f"{source.parent.name}-{source.stem}.o"


def compile_all(target: Target, sources: list[Path], folder: Path, *flags: str) -> None:
    """Compiles sources and kernels to objects. Warnings are errors."""
    jobs = [(source, "") for source in sources]
    jobs += [(OPS / f"{name}.c", own) for name, own in target.kernels.items()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = []
        for source, own in jobs:
            command = [*target.command, *FLAGS, *flags, *own.split(), "-c", str(source)]
            futures.append(pool.submit(run, [*command, "-o", str(object_of(source, folder))]))
        for future in futures:
            future.result()


def build(target: Target, folder: Path) -> None:
    """Compiles and links the programs into the folder."""
    sources = [*COMMON, *HARNESS_SOURCES, *PROGRAMS, *target.support]
    compile_all(target, sources, folder)
    own = {source: object_of(source, folder) for source in PROGRAMS}
    shared = [str(path) for path in sorted(folder.glob("*.o")) if path not in own.values()]
    for source, path in own.items():
        run([*target.command, str(path), *shared, "-lm", "-o", str(folder / source.stem)])
    for path in folder.glob("*.o"):
        path.unlink()


def sources_hash(target: Target) -> str:
    """Changes with everything that the programs are made of."""
    digest = hashlib.sha256(f"{arm_emulator.ZIG_VERSION} {target} {FLAGS}".encode())
    files = [*OPS.rglob("*.*"), *HARNESS.rglob("*.*"), *ARM.glob("*.[cS]")]
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def remove_old(root: Path, target: Target, current: Path) -> None:
    """Keeps the latest builds."""
    builds = sorted(root.glob(f"{target.name}-*"), key=lambda path: path.stat().st_mtime)
    for path in builds[:-N_KEPT]:
        if path != current:
            shutil.rmtree(path, ignore_errors=True)


def programs(target: Target) -> Path:
    """The folder with PROGRAMS, built if the sources have changed."""
    root = arm_emulator.cache_folder() / "programs"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{target.name}-{sources_hash(target)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=root, prefix="building-") as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            build(target, new)
            try:
                new.rename(folder)
            except OSError:  # another process was faster
                if not folder.exists():
                    raise
        remove_old(root, target, folder)
    return folder
