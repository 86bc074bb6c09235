"""The cffi declarations agree with the header, and a library that does not fit is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pydflash2
from pydflash2 import _ffi, _session, errors


def test_declarations_are_those_of_the_header(root: Path) -> None:
    script = root / "scripts" / "generate_cdef.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ENUMS = ("df2_status", "df2_log_level", "df2_cache_type", "df2_kernels", "df2_kernels_state")


def declared_structs() -> list[str]:
    """Typedefs of structs whose fields are known."""
    typedefs = _ffi.ffi.list_types()[0]
    kinds = {name: _ffi.ffi.typeof(name) for name in typedefs}
    return [n for n, kind in kinds.items() if kind.kind == "struct" and kind.fields is not None]


def layout_program() -> str:
    """C that prints every size, offset and enum value, one per line, as expected_layout() lists."""
    lines = []
    for struct in declared_structs():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        for field, _ in _ffi.ffi.typeof(struct).fields:
            lines.append(f'printf("{struct}.{field} %zu\\n", offsetof({struct}, {field}));')
    for enum in ENUMS:
        for name in _ffi.ffi.typeof(enum).relements:
            lines.append(f'printf("{name} %d\\n", (int){name});')
    for constant in ("DF2_MAX_DRAFT", "DF2_MAX_TAPS"):
        lines.append(f'printf("{constant} %d\\n", {constant});')
    body = "\n  ".join(lines)
    return (
        f'#include <stdio.h>\n#include "dflash2.h"\nint main(void) {{\n  {body}\n  return 0;\n}}\n'
    )


def expected_layout(constants: dict[str, int]) -> list[str]:
    lines = []
    for struct in declared_structs():
        lines.append(f"{struct} {_ffi.ffi.sizeof(struct)}")
        for field, info in _ffi.ffi.typeof(struct).fields:
            lines.append(f"{struct}.{field} {info.offset}")
    for enum in ENUMS:
        for name, value in _ffi.ffi.typeof(enum).relements.items():
            lines.append(f"{name} {value}")
    return lines + [f"{name} {value}" for name, value in constants.items()]


def test_layout_is_the_compilers(root: Path, tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(layout_program())
    include = root / "native" / "include"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}"]
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    taps = dict(_ffi.ffi.typeof("df2_drafter_info").fields)["tap_layers"].type
    constants = {
        "DF2_MAX_DRAFT": _session.MAX_STEP_TOKENS - 1,
        "DF2_MAX_TAPS": taps.length,
    }
    assert len(declared_structs()) >= 7
    assert printed.splitlines() == expected_layout(constants)


def test_every_status_has_an_exception() -> None:
    statuses = dict(_ffi.ffi.typeof("df2_status").relements)
    del statuses["DF2_OK"]
    assert set(_ffi.status_exceptions()) == set(statuses.values())


def test_versions_agree(root: Path) -> None:
    pyproject = (root / "pyproject.toml").read_text()
    pins = re.findall(r'"llama-cpp-python==([^"]+)"', pyproject)
    assert pins == [_ffi.LLAMA_CPP_VERSION] * 2
    assert _ffi.text(_ffi.library().df2_version()) == pydflash2.__version__


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own: the library is loaded once per process."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(sys.executable).parent,  # not the source tree: -c puts this folder into sys.path
    )


LOAD = """
from pydflash2 import _ffi, errors
try:
    _ffi.library()
except errors.BackendError as error:
    print(error)
"""


def test_missing_library(tmp_path: Path) -> None:
    done = python(LOAD, DF2_LIBRARY=str(tmp_path / "nowhere.so"))
    assert "nowhere.so" in done.stdout
    assert "reinstall" in done.stdout
    assert done.stderr == ""


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libdflash2.so"
    path.write_bytes(b"not a library")
    assert "cannot load" in python(LOAD, DF2_LIBRARY=str(path)).stdout


def test_another_version_of_the_library(root: Path, tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, path = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text('const char *df2_version(void) { return "9.9.9"; }\n')
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path], check=True)
    assert "libdflash2 9.9.9" in python(LOAD, DF2_LIBRARY=str(path)).stdout


def test_another_version_of_llama_cpp() -> None:
    done = python("import llama_cpp\nllama_cpp.__version__ = '0.0.1'\n" + LOAD)
    assert "pip install llama-cpp-python==0.3.36" in done.stdout
    assert "0.0.1" in done.stdout


def test_no_llama_cpp() -> None:
    done = python("import sys\nsys.modules['llama_cpp'] = None\n" + LOAD)
    assert "llama-cpp-python is not installed" in done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = python(
        "import sys, pydflash2\n"
        "print([m for m in ('llama_cpp', 'numpy', 'cffi') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]"


def test_library_messages_reach_the_exception() -> None:
    with pytest.raises(errors.ModelFileError, match=r"no-such-file\.gguf"):
        pydflash2.Drafter("no-such-file.gguf")
