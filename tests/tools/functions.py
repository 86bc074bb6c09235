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
# What stands before the parameters. Two underscores begin an attribute.
_NAME = re.compile(r"\b(?!__)([\w:]*\boperator\s*[^\s\w(]+|[~\w:]+)\s*\(")
_DELIMITER = re.compile(r"[;{}]")
_VALUE_ENDS = re.compile(r"\s*[,{]")


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
            if declaration.count("(") > declaration.count(")") or _VALUE_ENDS.match(code, at):
                continue  # a parameter's or a member's first value: the body is to come
            if _is_function(declaration):
                yield _function(code, head, at)
        head = at
    if n_groups != 0:
        raise ValueError("braces do not match: does a declaration begin in both parts of an #if?")


def _is_group(declaration: str) -> bool:
    """Whether declarations stand in the braces: a namespace, extern "C", a type with members."""
    if not _GROUP.match(declaration) or "=" in _bare(declaration):
        return False
    return not declaration.rstrip().endswith((")", " const", " noexcept", " override"))


def _is_function(declaration: str) -> bool:
    """Whether statements stand in the braces, and not values, those of a table for example."""
    if declaration.rstrip().endswith(")"):
        return True  # of a lambda, if it is the value of something
    return "(" in declaration and "=" not in _bare(declaration)


def _bare(declaration: str) -> str:
    """Without what stands in brackets, where an equals sign is a default."""
    rest = re.sub(r"\boperator\s*[^\s\w(]+", "", declaration)
    while (shorter := re.sub(r"\([^()]*\)|<[^<>]*>", "", rest)) != rest:
        rest = shorter
    return rest


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
    name = _NAME.search(text.partition("{")[0])
    first_line = code.count("\n", 0, first) + 1
    return Function(name[1] if name else "lambda", first_line, code.count("\n", first, end) + 1)
