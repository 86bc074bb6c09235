"""Builds llama.cpp's own tools, the peer that pydflash2 is compared with.

The source comes out of the llama-cpp-python source package, so that the peer is the very llama.cpp
the host ships; it is configured the way that package configures it, so that the kernels are the
same too. Everything stays in a cache folder: a download or build that was interrupted goes on where
it stopped, and a finished one is reused.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.errors import ToolError

HOST_PACKAGE = "llama-cpp-python"
HOST_VERSION = "0.3.36"
# The llama.cpp revision inside that version; the source package has no .git.
LLAMA_COMMIT = "0c1e570"
TOOLS = ("llama-speculative-simple", "llama-bench")

# The defaults of a standalone llama.cpp build that are not the defaults of the pip build. None of
# them reaches ggml or libllama: they only leave out what needs a network, OpenSSL or a web page.
_CONFIGURE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    f"-DLLAMA_BUILD_COMMIT={LLAMA_COMMIT}",
    "-DLLAMA_BUILD_NUMBER=0",
)
_STAMP = "build.json"


@dataclass(frozen=True, slots=True)
class Upstream:
    """A finished build of llama.cpp's tools."""

    folder: Path
    configure: tuple[str, ...]

    @property
    def speculative(self) -> Path:
        """The tool that runs llama.cpp's own speculative decoding on one prompt."""
        return self.folder / "build" / "bin" / "llama-speculative-simple"

    @property
    def bench(self) -> Path:
        """llama.cpp's own benchmark, for a second opinion on plain decoding."""
        return self.folder / "build" / "bin" / "llama-bench"


def describe() -> dict[str, Any]:
    """Where the peer comes from, as it goes into the results."""
    return {"package": f"{HOST_PACKAGE}=={HOST_VERSION}", "commit": LLAMA_COMMIT}


def cache_folder() -> Path:
    """Where the source, the build and nothing else of upstream is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pydflash2" / f"upstream-{HOST_VERSION}"


def _configure_arguments() -> tuple[str, ...]:
    """The CMake arguments: ours, then CMAKE_ARGS, which the pip build of the host obeys as well."""
    return (*_CONFIGURE, *shlex.split(os.environ.get("CMAKE_ARGS", "")))


def _processor() -> str:
    """What the compiler tunes for: a cache that moved to another machine must not be trusted."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _identity() -> dict[str, object]:
    """What two builds must share for one to stand in for the other."""
    return {
        "package": f"{HOST_PACKAGE}=={HOST_VERSION}",
        "configure": list(_configure_arguments()),
        "processor": _processor(),
    }


def find(folder: Path | None = None) -> Upstream | None:
    """The finished build in the cache, if there is one for this machine and these arguments."""
    folder = folder or cache_folder()
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = Upstream(folder=folder, configure=_configure_arguments())
    is_same = all(stamp.get(key) == value for key, value in _identity().items())
    return found if is_same and found.speculative.is_file() and found.bench.is_file() else None


def ensure(*, jobs: int, folder: Path | None = None) -> Upstream:
    """Returns the build in the cache, making it first if need be (about 10 minutes on 2 cores)."""
    folder = folder or cache_folder()
    found = find(folder)
    if found is not None:
        return found
    if shutil.which("cmake") is None:
        raise ToolError(
            "cmake is needed to build llama.cpp's own tools and was not found",
            "install cmake (3.14 or newer; `pip install cmake` will do) and a C++ compiler, or "
            "leave the peer out with --no-upstream",
        )
    folder.mkdir(parents=True, exist_ok=True)
    source = _ensure_source(folder)
    arguments = _configure_arguments()
    began = time.monotonic()
    build = folder / "build"
    log = folder / "build.log"
    # The build tool sees no change when -march=native comes to mean something else.
    built_for = build / "processor.txt"
    if build.exists() and (not built_for.is_file() or built_for.read_text() != _processor()):
        shutil.rmtree(build)
    build.mkdir(exist_ok=True)
    built_for.write_text(_processor())
    print(f"building {', '.join(TOOLS)} in {build} (log: {log})", flush=True)
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    if (build / "CMakeCache.txt").exists():
        generator = ()  # a build folder keeps the generator it was made with
    with log.open("w", encoding="utf-8") as out:
        configure = ["cmake", "-S", str(source), "-B", str(build), *generator, *arguments]
        _run_logged("configuring llama.cpp", configure, out.fileno(), log)
        compile_ = ["cmake", "--build", str(build), "--parallel", str(jobs), "--target", *TOOLS]
        _run_logged("compiling llama.cpp", compile_, out.fileno(), log, progress=build)
    seconds = round(time.monotonic() - began)
    stamp = {**_identity(), "llama_commit": LLAMA_COMMIT, "seconds": seconds}
    # Written last, and by renaming: its presence is what says that the build is whole.
    partial = folder / (_STAMP + ".partial")
    partial.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / _STAMP)
    print(f"built llama.cpp's tools in {seconds} s", flush=True)
    return Upstream(folder=folder, configure=arguments)


def _ensure_source(folder: Path) -> Path:
    """Downloads the host's source package and unpacks its llama.cpp, if not done already."""
    source = folder / "llama.cpp"
    if (source / "CMakeLists.txt").is_file():
        return source
    archive = _ensure_archive(folder)
    partial = folder / "llama.cpp.partial"
    shutil.rmtree(partial, ignore_errors=True)
    print(f"unpacking {archive.name}", flush=True)
    prefix = "vendor/llama.cpp/"
    with tarfile.open(archive) as packed:
        for member in packed:
            inside = member.name.partition("/")[2]
            if inside.startswith(prefix):
                member.name = inside[len(prefix) :]
                packed.extract(member, partial, filter="data")
    if not (partial / "CMakeLists.txt").is_file():
        raise ToolError(
            f"{archive.name} holds no {prefix}CMakeLists.txt",
            f"delete {archive} and run again; the download may be damaged",
        )
    partial.rename(source)
    return source


def _ensure_archive(folder: Path) -> Path:
    pattern = f"llama_cpp_python-{HOST_VERSION}.tar.gz"
    archive = folder / pattern
    if archive.is_file():
        return archive
    partial = folder / "download"
    command = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps"]
    command += ["--dest", str(partial), f"{HOST_PACKAGE}=={HOST_VERSION}"]
    print(f"downloading the source package of {HOST_PACKAGE} {HOST_VERSION} (77 MB)", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not (partial / pattern).is_file():
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ToolError(
            f"`{shlex.join(command)}` failed: {' '.join(last) or 'no file arrived'}",
            f"check that pip reaches its package index, or put {pattern} into {folder} yourself",
        )
    (partial / pattern).replace(archive)
    shutil.rmtree(partial, ignore_errors=True)
    return archive


def _run_logged(
    what: str, command: Sequence[str], out: int, log: Path, *, progress: Path | None = None
) -> None:
    """Runs one command into the log; with a build folder, says now and then how far it is."""
    process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    began = time.monotonic()
    try:
        while True:
            try:
                code = process.wait(timeout=15)
                break
            except subprocess.TimeoutExpired:
                if progress is not None:
                    n_objects = sum(1 for _ in progress.rglob("*.o"))
                    seconds = time.monotonic() - began
                    print(f"  {what}: {n_objects} files, {seconds:.0f} s", flush=True)
    except BaseException:
        # Interrupting is fine (the build tool goes on next time), leaving it running is not.
        process.terminate()
        process.wait()
        raise
    if code != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise ToolError(
            f"{what} failed (exit status {code}); the end of its log:\n{tail}",
            f"see {log}; running again goes on where it stopped; --no-upstream leaves the peer out",
        )
