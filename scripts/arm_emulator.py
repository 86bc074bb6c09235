"""Gets an AArch64 C compiler and emulator, to test the ARM kernels on any Linux machine.

Usage: python scripts/arm_emulator.py                           fetch them and say where they are
       python scripts/arm_emulator.py run MODEL PROGRAM [ARG]...    run a static AArch64 program
       python scripts/arm_emulator.py cc [ARG]...               compile: the arguments of clang

The compiler is zig's clang, from its Python package. The emulator is user-mode QEMU, which runs
SME2 since version 10.1: the system's own if it is new enough, else the one in Debian's backports,
from the mirror that apt uses, without touching apt's configuration. Both are kept in
${XDG_CACHE_HOME:-~/.cache}/pydflash2/arm. MODEL is one of the names below, or any that QEMU knows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ZIG_VERSION = "0.17.1"
QEMU_MINIMUM = (10, 1)
QEMU_SUITE = "trixie-backports"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# What QEMU needs to be told to look like these. Without FA64 NEON traps in streaming mode, as on
# every processor sold; QEMU's "max" would let it run.
MODELS = {
    "cortex-a53": "cortex-a53",
    "cortex-a76": "cortex-a76",
    "neoverse-v1": "neoverse-v1",
    "neoverse-n2": "neoverse-n2",
    "max-no-sme": "max,sme=off",
    "max-sme": "max,sme_fa64=off",
    "apple-m4": "max,sve=off,sme_fa64=off,sme512=on",
    "sme128": "max,sve=off,sme_fa64=off,sme128=on",
    "sme256": "max,sve=off,sme_fa64=off,sme256=on",
}


class EmulatorError(Exception):
    """The compiler or the emulator cannot be had; says why and what to do."""


def cache_folder() -> Path:
    """Where both are kept."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "pydflash2" / "arm"


def quiet(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Runs a command; what it printed, if it fails, is the error's message."""
    result = subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, check=False
    )
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise EmulatorError(f"{command[0]} failed: " + (lines[-1] if lines else "no message"))
    return result.stdout


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by fetch(folder) the first time.

    A folder appears only when it is complete, also if two processes fetch at once.
    """
    folder = cache_folder() / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {name} into {folder.parent}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fetch(Path(scratch) / "new")
        try:
            (Path(scratch) / "new").rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def fetch_zig(folder: Path) -> None:
    """The package's files, without an environment around them: its compiler runs on its own."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    try:
        quiet([*pip, "--target", str(folder), f"ziglang=={ZIG_VERSION}"], folder.parent)
    except EmulatorError as error:
        raise EmulatorError(
            f"the C compiler in ziglang {ZIG_VERSION} cannot be installed ({error}); check that "
            "pip reaches its package index"
        ) from None


def debian_mirror() -> str:
    """The archive that apt is set up to use."""
    uris = quiet(["apt-get", "indextargets", "--format", "$(REPO_URI)"], Path.cwd()).split()
    archives = sorted({uri for uri in uris if "security" not in uri})
    if not archives:
        raise EmulatorError("apt names no archive; run apt-get update")
    return archives[0]


def fetch_qemu(folder: Path) -> None:
    """One program out of Debian's package, with lists and configuration of its own."""
    if not shutil.which("apt-get") or not KEYRING.exists():
        raise EmulatorError("this is not Debian")
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {debian_mirror()} {QEMU_SUITE} main\n")
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # the folder is closed to apt's own user
    }
    configuration = folder / "apt.conf"
    configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(configuration)}
    quiet(["apt-get", "-qq", "update"], folder, environment)
    quiet(["apt-get", "-qq", "download", "qemu-user"], folder, environment)
    (package,) = folder.glob("qemu-user_*.deb")
    quiet(["dpkg-deb", "-x", str(package), "unpacked"], folder)
    (folder / "unpacked/usr/bin/qemu-aarch64").rename(folder / "qemu-aarch64")
    for name in ("unpacked", "lists", "cache"):
        shutil.rmtree(folder / name)
    for file in (package, sources, configuration):
        file.unlink()


def qemu_version(program: str) -> tuple[int, int]:
    """Major and minor version."""
    match = re.search(r"version (\d+)\.(\d+)", quiet([program, "--version"], Path.cwd()))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def zig() -> Path:
    """The compiler, fetched if need be."""
    return fetched(f"ziglang-{ZIG_VERSION}", fetch_zig) / "ziglang" / "zig"


def qemu() -> Path:
    """The emulator, fetched if need be."""
    for name in ("qemu-aarch64", "qemu-aarch64-static"):
        own = shutil.which(name)
        if own and qemu_version(own) >= QEMU_MINIMUM:
            return Path(own)
    try:
        program = fetched("qemu-user", fetch_qemu) / "qemu-aarch64"
        version = qemu_version(str(program))
    except EmulatorError as error:
        wanted = ".".join(map(str, QEMU_MINIMUM))
        raise EmulatorError(
            f"no QEMU that runs SME2 ({error}); install qemu-user {wanted} or later"
        ) from None
    if version < QEMU_MINIMUM:
        raise EmulatorError(f"{program} is too old; remove {program.parent} and try again")
    return program


def compiler() -> list[str]:
    """The command that compiles C for static AArch64 Linux programs.

    A -target among its arguments makes it compile for something else.
    """
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_folder() / "zig-cache"))
    os.environ.setdefault("ZIG_LOCAL_CACHE_DIR", str(cache_folder() / "zig-cache"))
    return [str(zig()), "cc", "-target", "aarch64-linux-musl", "-static"]


def emulator(model: str, *options: str) -> list[str]:
    """The command that runs a static AArch64 program on a processor model."""
    return [str(qemu()), "-cpu", MODELS.get(model, model), *options]


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case []:
                print(f"compiler: {zig()}\nemulator: {qemu()}\nmodels:   {', '.join(MODELS)}")
                return 0
            case ["run", model, program, *rest]:
                return subprocess.run([*emulator(model), program, *rest], check=False).returncode
            case ["cc", *rest]:
                return subprocess.run([*compiler(), *rest], check=False).returncode
    except EmulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
