"""The door to libdflash2: finds and loads it, and turns its status codes into exceptions.

cffi in ABI mode: no compiled extension module, so one wheel serves every Python version. llama_cpp
is imported first, so that libdflash2's dependency on libllama resolves to the copy llama-cpp-python
has already loaded and a `llama_context *` means the same to both.

Environment: DF2_LIBRARY names another build of the library to load, e.g. one under development.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

import cffi

from pydflash2 import __version__, errors
from pydflash2._cdef import CDEF

LLAMA_CPP_VERSION = "0.3.36"
"""The llama-cpp-python release whose llama.cpp this version is built against."""

ffi: Any = cffi.FFI()
ffi.cdef(CDEF)

logger = logging.getLogger("pydflash2")

_OPTION_STRUCTS = ("df2_target_options", "df2_drafter_options", "df2_session_options")

_EXCEPTIONS: dict[str, type[errors.Dflash2Error]] = {
    "DF2_EINVAL": errors.InvalidArgumentError,
    "DF2_ENOMEM": errors.OutOfMemoryError,
    "DF2_EIO": errors.ModelFileError,
    "DF2_EFORMAT": errors.ModelFormatError,
    "DF2_EMISMATCH": errors.MismatchError,
    "DF2_EUNSUPPORTED": errors.UnsupportedError,
    "DF2_ECONTEXT": errors.ContextFullError,
    "DF2_EREWIND": errors.RewindError,
    "DF2_EBACKEND": errors.BackendError,
    "DF2_EPOISONED": errors.PoisonedError,
    "DF2_EINTERNAL": errors.BackendError,
}


def status_exceptions() -> dict[int, type[errors.Dflash2Error]]:
    """The one map from df2_status to exception classes."""
    names = ffi.typeof("df2_status").relements
    return {names[name]: exception for name, exception in _EXCEPTIONS.items()}


def check(status: int) -> None:
    """Raises the exception that belongs to a negative status, with the library's message."""
    if status >= 0:
        return
    exception = status_exceptions().get(status, errors.BackendError)
    raise exception(text(library().df2_error_last()))


def text(pointer: Any) -> str:
    """A C string as str; what is not UTF-8 in it becomes U+FFFD."""
    raw: bytes = ffi.string(pointer)
    return raw.decode("utf-8", "replace")


def library_path() -> Path:
    """Where the library is looked for: DF2_LIBRARY, this package's lib folder, the installed
    package's. The last is for Python started in the repository, where `import pydflash2` finds the
    sources."""
    override = os.environ.get("DF2_LIBRARY")
    if override:
        return Path(override)
    name = "libdflash2.dylib" if sys.platform == "darwin" else "libdflash2.so"
    path = Path(__file__).parent / "lib" / name
    if not path.is_file():
        with contextlib.suppress(PackageNotFoundError):
            installed = Path(str(distribution("pydflash2").locate_file(f"pydflash2/lib/{name}")))
            return installed if installed.is_file() else path
    return path


class Uncopyable:
    """Base of what stands for memory of the native library. A copy would free it a second time, or
    go on using it after the original has freed it."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """What copy, deepcopy and pickle ask for."""
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be copied or pickled, because it stands for memory of the native "
            f"library: pass the {name} itself around, or make another one with the same arguments"
        )


@functools.lru_cache(maxsize=1)
def library() -> Any:
    """The loaded library (cffi lib object), loaded and checked on first use. Any thread.

    Raises BackendError if it, or the llama-cpp-python it belongs to, is missing or of another
    version.
    """
    require_llama_cpp()
    path = library_path()
    if not path.is_file():
        raise errors.BackendError(
            f"the native library is not at {path}; reinstall pydflash2, "
            "or set DF2_LIBRARY to the path of a libdflash2 you built"
        )
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise errors.BackendError(
            f"cannot load {path}: {error}; reinstall pydflash2 together with "
            f"llama-cpp-python=={LLAMA_CPP_VERSION}"
        ) from error
    _check_abi(lib, path)
    lib.df2_log_set(_forward_log, ffi.NULL)
    # Before anything can load a model. Should the environment ask for the impossible, loading one
    # says so.
    lib.df2_kernels_enable()
    return lib


def require_llama_cpp() -> str:
    """Imports llama_cpp and returns its version. BackendError, with the remedy, if it does not
    fit."""
    remedy = f"pip install llama-cpp-python=={LLAMA_CPP_VERSION}"
    try:
        import llama_cpp
    except ImportError as error:
        raise errors.BackendError(f"llama-cpp-python is not installed: {remedy}") from error
    except (OSError, RuntimeError) as error:
        raise errors.BackendError(
            f"llama-cpp-python cannot load llama.cpp ({error}): {remedy}"
        ) from error
    if llama_cpp.__version__ != LLAMA_CPP_VERSION:
        raise errors.BackendError(
            f"llama-cpp-python {llama_cpp.__version__} is installed, but this pydflash2 is built "
            f"against {LLAMA_CPP_VERSION}, and llama.cpp's binary interface changes: {remedy}"
        )
    return str(llama_cpp.__version__)


def _check_abi(lib: Any, path: Path) -> None:
    """A version or a struct this package does not know means that every later call would read the
    wrong memory."""
    found = text(lib.df2_version())
    if found != __version__:
        raise errors.BackendError(
            f"{path} is libdflash2 {found}, but this is pydflash2 {__version__}: "
            "reinstall pydflash2, or unset DF2_LIBRARY"
        )
    for name in _OPTION_STRUCTS:
        options = ffi.new(f"{name} *")
        if getattr(lib, f"{name}_init")(options, ffi.sizeof(name)) != 0:
            raise errors.BackendError(
                f"{path} does not know this package's {name}: it was built from other sources; "
                "reinstall pydflash2"
            )


@ffi.callback("df2_log_callback")  # type: ignore[untyped-decorator]
def _forward_log(level: int, message: Any, payload: Any) -> None:
    logger.log(logging.WARNING if level >= 2 else logging.INFO, "%s", text(message).rstrip())


def address(pointer: Any) -> int:
    """A C pointer as the integer that ctypes bindings take."""
    return int(ffi.cast("uintptr_t", pointer))
