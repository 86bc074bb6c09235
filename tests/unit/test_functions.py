"""The scanner that tells how long functions are finds them, and is not misled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.functions import Function, functions

ROOT = Path(__file__).resolve().parents[2]


def scanned(folder: Path, text: str, suffix: str = ".cpp") -> list[Function]:
    path = folder / f"source{suffix}"
    path.write_text(text)
    return functions(path)


def body(n_lines: int) -> str:
    """The braces of a function whose head is on their first line."""
    return "{\n" + "  step();\n" * (n_lines - 2) + "}\n"


HEADS = {
    "static int run(int n) ": "run",
    "df2_status df2_run(df2_session *session) ": "df2_run",
    "static struct point *make(struct point from) ": "make",
    'extern "C" void run(void) ': "run",
    '__arm_new("za") static void run(const void *table) __arm_streaming ': "run",
    "void Session::run(int n) const noexcept ": "Session::run",
    "template <typename T, int N = 4> void run(T value) ": "run",
    "template <typename T = std::vector<std::vector<int>>> void run(T value) ": "run",
    "void run(int n = 4, std::vector<int> more = {}) ": "run",
    "auto run(int n) -> std::vector<int> ": "run",
    "Session::Session(int n) : n_(n), rows_{n, 2}, cells_{} ": "Session::Session",
    "Session::~Session() ": "Session::~Session",
    "bool operator==(const Row &a, const Row &b) ": "operator==",
    "const auto run = [](int n) ": "lambda",
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("n_lines", [60, 61])
def test_functions_are_measured(head: str, n_lines: int, tmp_path: Path) -> None:
    text = f"int before = 3;\n{head}{body(n_lines)}int after() {{ return 1; }}\n"
    found = scanned(tmp_path, text)
    assert [(one.first_line, one.n_lines) for one in found] == [(2, n_lines), (2 + n_lines, 1)]
    assert found[0].name == HEADS[head]


def test_a_head_of_several_lines_counts(tmp_path: Path) -> None:
    (found,) = scanned(
        tmp_path, "// what it does\n\nstatic void run(int a,\n                int b) {\n}\n"
    )
    assert (found.name, found.first_line, found.n_lines) == ("run", 3, 3)


@pytest.mark.parametrize(
    "group",
    [
        "namespace df2 {",
        "namespace {",
        'extern "C" {',
        "class Session : public Base {",
        "struct alignas(16) Session {",
        "template <typename T> struct Session {",
    ],
)
def test_functions_are_found_in_groups(group: str, tmp_path: Path) -> None:
    found = scanned(tmp_path, f"{group}\n\nvoid run() {body(61)}\n}};\nvoid last() {{}}\n")
    assert [(one.name, one.n_lines) for one in found] == [("run", 61), ("last", 1)]


@pytest.mark.parametrize(
    "line",
    [
        '  print("}}}");',
        '  print("\\"}");',
        "  put('}');",
        "  put('\\'', '}');",
        "  // } it's",
        '  /* } " */',
        '  print(R"(}")");',
        "#define END }",
        "#define END \\\n  }",
        "  int n = 1'000'000;",
        "  for (const auto &row : std::vector<int>{1, 2}) {\n  }",
    ],
)
def test_only_code_counts(line: str, tmp_path: Path) -> None:
    text = f"void run() {{\n{line}\n}}\nvoid last() {{\n}}\n"
    found = scanned(tmp_path, text)
    assert [one.name for one in found] == ["run", "last"]
    assert found[0].n_lines == 3 + line.count("\n")


@pytest.mark.parametrize(
    "table",
    [
        "static const int squares[] = {\n" + "  1,\n" * 70 + "};\n",
        "static const struct row rows[] = {\n" + "  {1, f(2)},\n" * 70 + "};\n",
        "const std::map<int, int> squares{\n" + "  {1, 1},\n" * 70 + "};\n",
        "enum kind {\n" + "  KIND = f(1),\n" * 70 + "};\n",
        "#define KINDS(X) \\\n" + "  X(1) \\\n" * 70 + "  X(2)\n",
    ],
)
def test_tables_are_no_functions(table: str, tmp_path: Path) -> None:
    assert [one.name for one in scanned(tmp_path, table + "void last() {}\n")] == ["last"]


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    text = "#ifdef A\nvoid run(int a) {\n#else\nvoid run(void) {\n#endif\n}\n"
    with pytest.raises(ValueError, match="braces do not match"):
        scanned(tmp_path, text)


def test_python_functions_are_measured(tmp_path: Path) -> None:
    text = "class A:\n    @cached\n    def run(self):\n" + "        step()\n" * 60
    text += "        async def inner():\n            pass\n"
    found = scanned(tmp_path, text, ".py")
    assert [(one.name, one.n_lines) for one in found] == [("run", 63), ("inner", 2)]


SOURCES = sorted((ROOT / "native").rglob("*.c")) + sorted((ROOT / "native").rglob("*.inc"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_is_found(path: Path) -> None:
    """As clang-format writes C, a brace alone in the first column ends one."""
    lines = path.read_text().split("\n")
    ends = [number for number, line in enumerate(lines, 1) if line == "}"]
    assert ends == [one.first_line + one.n_lines - 1 for one in functions(path)]
