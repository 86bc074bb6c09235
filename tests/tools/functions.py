"""Finds the functions of C, C++ and Python sources, and how long they are.

C and C++ are read as clang-format leaves them: comments, strings and preprocessor lines are blanked
out, and braces matched. That is not a parser. What it cannot follow it refuses, rather than find
nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Function:
    """A function with a body. ``n_lines``: from the first line of its head to its last line."""

    name: str
    first_line: int
    n_lines: int


def functions(path: Path) -> list[Function]:
    """The functions of a source file. Those inside a C or C++ function (lambdas, methods of a local
    class) are part of it; Python's nested ones are listed as well."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return list(_python_functions(text))
    return list(_c_functions(text))


def _python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            end = node.end_lineno or node.lineno
            yield Function(node.name, node.lineno, end - node.lineno + 1)


# In this order, so that a quote inside a comment is no string, and the other way round.
_NO_CODE = re.compile(
    r"""//(?:\\\n|[^\n])*
      | /\*.*?\*/
      | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
      | ^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*""",
    re.S | re.M | re.X,
)
_GROUP = re.compile(
    r"\s*(?:(?:template\s*<.*>|typedef|inline|static|const)\s+)*"
    r"(?:(?:namespace|class|struct|union|enum)\b|extern\s*$)",
    re.S,
)
_DELIMITER = re.compile(r"[;{}]")


def code_of(text: str) -> str:
    """The text with everything that is not code blanked out, line by line as long as before."""
    return _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _c_functions(text: str) -> Iterator[Function]:
    code = code_of(text)
    head = 0  # where the declaration begins that is being read
    n_groups = 0  # that are open
    at = 0
    while delimiter := _DELIMITER.search(code, at):
        at = delimiter.end()
        declaration = code[head : delimiter.start()]
        if delimiter[0] == "}":
            n_groups -= 1
        elif delimiter[0] == "{" and _is_group(declaration):
            n_groups += 1
        elif delimiter[0] == "{":
            at = _end_of_block(code, at)
            if re.compile(r"\s*[,{]").match(code, at):
                continue  # a member's first value, in a constructor's head: the body is to come
            if not _is_value(declaration):
                yield _function(code, head, at)
        head = at
    if n_groups != 0:
        raise ValueError("braces do not match: does a declaration begin in both parts of an #if?")


def _is_group(declaration: str) -> bool:
    """Whether declarations stand in the braces: a namespace, extern "C", a type with members."""
    is_function = declaration.rstrip().endswith((")", " const", " noexcept", " override"))
    return not is_function and not _is_value(declaration) and bool(_GROUP.match(declaration))


def _is_value(declaration: str) -> bool:
    """Whether values stand in the braces: those of a table, for example."""
    rest = re.sub(r"\boperator\s*[^\s\w]+", "", declaration)
    while (shorter := re.sub(r"\([^()]*\)", "", rest)) != rest:
        rest = shorter
    return "=" in rest


def _end_of_block(code: str, at: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(code, at):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError("braces do not match: does a declaration begin in both parts of an #if?")


def _function(code: str, head: int, end: int) -> Function:
    text = code[head:end]
    first = head + len(text) - len(text.lstrip())
    name = re.search(r"([~\w:]+)\s*\(", text)
    first_line = code.count("\n", 0, first) + 1
    return Function(name[1] if name else "", first_line, code.count("\n", first, end) + 1)
