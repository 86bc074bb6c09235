"""Writes pydflash2/_cdef.py, the declarations cffi needs, from native/include/dflash2.h.

Usage: python scripts/generate_cdef.py            rewrite the file
       python scripts/generate_cdef.py --check    exit 1 if the file is not what the header says

The header is the only source: run this after every change to it. tests/unit/test_ffi.py checks
both the text and, with a C compiler, every size, offset and enum value.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native" / "include" / "dflash2.h"
OUTPUT = ROOT / "pydflash2" / "_cdef.py"

PREAMBLE = '''"""libdflash2 for cffi. Made by scripts/generate_cdef.py: do not edit."""

CDEF = """
'''


def declarations(header: str) -> str:
    """The header's declarations in the subset of C that cffi parses.

    No comments, and no preprocessor lines but integer constants.
    """
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    text = text.replace("\\\n", " ")
    lines = []
    for line in text.splitlines():
        constant = re.fullmatch(r"#define\s+(DF2_\w+)\s+(\d+)\s*", line)
        if constant:
            lines.append(f"#define {constant[1]} {constant[2]}")
        elif not line.lstrip().startswith("#"):
            lines.append(line.rstrip())
    text = "\n".join(lines).replace("DF2_API ", "")
    # What is left of `extern "C" { ... }` once its #ifdef lines are gone.
    text, opened = re.subn(r'^extern "C" \{\n', "", text, flags=re.MULTILINE)
    if opened:
        text = re.sub(r"\n\}\s*\Z", "\n", text.rstrip() + "\n")
    return re.sub(r"\n{2,}", "\n\n", text).strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write pydflash2/_cdef.py from dflash2.h")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    wanted = PREAMBLE + declarations(HEADER.read_text("utf-8")) + '"""\n'
    if not args.check:
        OUTPUT.write_text(wanted, "utf-8")
        return 0
    if not OUTPUT.exists() or OUTPUT.read_text("utf-8") != wanted:
        print(
            f"{OUTPUT.name} differs from {HEADER.name}: run python scripts/generate_cdef.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
