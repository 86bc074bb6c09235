"""`pydflash2 doctor`."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from pydflash2 import __version__
from pydflash2.cli import _arguments, _terminal
from pydflash2.errors import BackendError, Dflash2Error, ModelFileError

N_TEST_TOKENS = 32

EPILOG = """\
Checks that llama.cpp and the native library are there and fit each other, and generates a few
tokens with and without drafting, which must be the same. Exit status 1 if something is wrong.
"""


class _Skipped(Exception):  # noqa: N818  (not an error)
    """A check that does not apply here, and after which the rest does not either."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    _arguments.add_verbose(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the checks in order and stops at the first that fails: the later ones need it."""
    _terminal.prepare_streams()
    console = _terminal.make_console()
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("system", _system),
        ("llama.cpp", _llama_cpp),
        ("library", _library),
        ("one llama.cpp", _one_llama),
        ("processor", _processor),
        ("threads", _threads),
        ("kernels", _kernels),
        ("demo drafter", _drafter),
        ("demo target", _target),
        ("self-test", lambda: _self_test(verbose=args.verbose)),
    )
    for name, check in checks:
        try:
            _line(console, name, "ok", check(), "green")
        except _Skipped as error:
            _line(console, name, "skip", str(error), "yellow")
            console.print("Everything else works; the self-test needs the demo's target.")
            return 0
        except Dflash2Error as error:
            _line(console, name, "FAIL", str(error), "bold red")
            if args.verbose:
                raise
            return 1
    console.print("Everything works.")
    return 0


def _line(console: Console, name: str, verdict: str, text: str, style: str) -> None:
    console.print(f"{name:<14}", end="")
    console.print(f"{verdict:<6}", style=style, end="")
    console.print(text, markup=False)


def _system() -> str:
    python = platform.python_version()
    return f"pydflash2 {__version__}, Python {python}, {platform.system()} {platform.machine()}"


def _llama_cpp() -> str:
    from pydflash2 import _ffi

    return f"llama-cpp-python {_ffi.require_llama_cpp()}"


def _library() -> str:
    from pydflash2 import _ffi

    lib = _ffi.library()
    return f"libdflash2 {_ffi.text(lib.df2_version())} at {_ffi.library_path()}"


def _one_llama() -> str:
    """Pointers may be shared between the two bindings only if both use the same libllama."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return f"not checked on {sys.platform}"
    mapped = {
        line.split(maxsplit=5)[5]
        for line in maps.read_text("utf-8", "replace").splitlines()
        if "/libllama.so" in line
    }
    if len(mapped) != 1:
        raise BackendError(
            f"{len(mapped)} copies of libllama are loaded ({', '.join(sorted(mapped))}): "
            "reinstall pydflash2, and unset DF2_LIBRARY and LLAMA_CPP_LIB_PATH"
        )
    return mapped.pop()


def _processor() -> str:
    from pydflash2 import _llama_cpp as llama

    parts = [part.strip() for part in llama.system_info().split("|")]
    enabled = [part.removesuffix(" = 1") for part in parts if part.endswith(" = 1")]
    return " ".join(enabled).replace("CPU : ", "")


def _threads() -> str:
    from pydflash2 import _ffi

    reason = _ffi.ffi.new("char **")
    n_threads = _ffi.library().df2_threads_default(reason)
    return f"{n_threads}: {_ffi.text(reason[0])}"


def _kernels() -> str:
    import pydflash2

    found = pydflash2.enable_kernels()
    if found.state == "failed":
        raise BackendError(
            f"the kernels failed their self-test ({found.note}), so llama.cpp's own are in "
            "use; please report this together with the lines above"
        )
    return found.isa if found.state == "active" else f"llama.cpp's own: {found.note}"


def _drafter() -> str:
    from pydflash2 import _bundle

    return str(_bundle.drafter_path())


def _target() -> str:
    from pydflash2 import _bundle

    try:
        return str(_bundle.target_path())
    except ModelFileError as error:
        # Nothing is wrong: who has models of their own does not need this one.
        raise _Skipped(str(error)) from error


def _self_test(*, verbose: bool) -> str:
    import pydflash2

    with pydflash2.load(*pydflash2.demo_pair(), n_ctx=256, n_draft=4, verbose=verbose) as llm:
        prompt = llm.format_chat([{"role": "user", "content": "Count from one to twenty."}])
        drafted = llm.generate(prompt, max_tokens=N_TEST_TOKENS)
        llm.set_drafting(False)
        plain = llm.generate(prompt, max_tokens=N_TEST_TOKENS)
    if drafted.tokens != plain.tokens:
        raise BackendError(
            f"drafting changed the text: {drafted.text!r} instead of {plain.text!r}; "
            "please report this together with the lines above"
        )
    n_accepted, n_drafted = drafted.stats.n_accepted, drafted.stats.n_drafted
    if n_accepted == 0:
        raise BackendError(
            f"none of {n_drafted} drafted tokens was accepted, so drafting cannot help; "
            "please report this together with the lines above"
        )
    packed = drafted.stats.target_packed_bytes
    return (
        f"{len(plain.tokens)} tokens, the same with and without drafting; "
        f"{n_accepted} of {n_drafted} drafted tokens accepted; "
        + (f"{packed >> 20} MiB of weights packed" if packed else "weights not packed")
    )
