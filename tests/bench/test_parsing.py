"""Checks what the benchmark reads and concludes, on made-up output: `pytest tests/bench`.

Needs no model and no build. The log lines have the wording of the llama.cpp version that
``upstream.py`` builds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import environment, report
from bench.summary import Best, Record, Reference, best, compare, summarise
from bench.systems import (
    OURS,
    PLAIN,
    UPSTREAM,
    Rendered,
    Run,
    System,
    parse_upstream,
    without_verify,
)
from tests.tools.errors import ToolError

PROMPT = Rendered(text="<|im_start|>user\nHi<|im_end|>\n", tokens=[1] * 44)
LOG = """\
0.01.505.667 I encoded   44 tokens in    0.150 seconds, speed:  287.480 t/s
0.01.505.677 I decoded  161 tokens in    2.000 seconds, speed:   80.500 t/s
0.01.505.678 I n_draft   = 2
0.01.505.721 I spec common_specu: statistics     draft-dflash: #calls(b,g,a) =    1    100    100, \
#gen drafts =    100, #acc drafts =    45, #gen tokens =    200, #acc tokens =    61, \
#mean acc len = 1.61, #acc rate/pos = (0.450, 0.160), dur(b,g,a) = 0.002, 300.000, 0.010 ms
0.01.505.727 I common_perf_print:    sampling time =      10.00 ms
0.01.505.734 I common_perf_print: prompt eval time =    1640.00 ms /    46 tokens (    3.94 ms)
0.01.505.735 I common_perf_print:        eval time =      10.00 ms /     1 runs   (    8.67 ms)
"""
REFERENCE = Reference(tokens=[7, 8, 9], pieces=[b"ab", b"c", b"<end>"], gaps=[3.0, 0.5, 2.0])


def _run(tokens: list[int] | None, text: bytes | None = None, decode_s: float = 1.0) -> Run:
    phases = {"prefill": 0.1, "draft": 0.0, "verify": 0.9 * decode_s, "other": 0.1 * decode_s}
    return Run(
        tokens=tokens,
        text=text,
        n_decoded=100,
        decode_s=decode_s,
        phases_s=phases,
        n_cycles=100,
        n_drafted=0,
        n_accepted=0,
        drafted_at=[],
        accepted_at=[],
    )


def _record(system: System, run: Run, repeat: int = 0) -> Record:
    return Record(
        system=system,
        group="questions",
        prompt="p",
        repeat=repeat,
        run=run,
        difference=None,
        foreign_cpu_s=None,
    )


def test_reads_upstream_output() -> None:
    out = b"\n\n" + PROMPT.text.encode() + b"\nHello\n" + b"\n\n\n\n"
    run = parse_upstream(out, LOG, prompt=PROMPT, n_max=2)
    assert run.text == b"\nHello\n"
    assert (run.n_decoded, run.decode_s, run.n_cycles) == (161, 2.0, 100)
    assert (run.n_drafted, run.n_accepted) == (200, 61)
    assert run.drafted_at == [100, 100]
    assert run.accepted_at == pytest.approx([45, 16])
    expected = {"prefill": 0.15, "draft": 0.3, "verify": 1.5, "accept": 0.01, "other": 0.19}
    assert run.phases_s == pytest.approx(expected)


def test_long_prompts_leave_no_time_of_verifying() -> None:
    out = b"\n\n" + PROMPT.text.encode() + b"\n\n\n\n"
    run = without_verify(parse_upstream(out, LOG, prompt=PROMPT, n_max=2))
    assert run.phases_s == pytest.approx(
        {"prefill": 0.15, "draft": 0.3, "accept": 0.01, "other": 1.69}
    )
    row = summarise([_record(System(UPSTREAM, 2), run)])[0]
    assert row.outside is None
    assert "verify" not in row.phases_ms


def test_unknown_log_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ToolError, match="remedy"):
        parse_upstream(b"\n\n\n\n", "nothing of the kind", prompt=PROMPT, n_max=1)


def test_prompt_of_another_length_is_an_error() -> None:
    shorter = Rendered(text=PROMPT.text, tokens=PROMPT.tokens[1:])
    out = b"\n\n" + PROMPT.text.encode() + b"\n\n\n\n"
    with pytest.raises(ToolError, match="44 tokens instead of 43"):
        parse_upstream(out, LOG, prompt=shorter, n_max=2)


@pytest.mark.parametrize(
    "run",
    [
        _run([7, 8, 9]),
        _run([7, 8, 9, 10]),  # more than asked for
        _run(None, b"abc<end>"),
        _run(None, b"abc"),  # the token that ends the generation is not printed
    ],
)
def test_same_text(run: Run) -> None:
    assert compare(run, REFERENCE) is None


@pytest.mark.parametrize(
    ("run", "index"),
    [(_run([7, 5, 9]), 1), (_run([7, 8]), 2), (_run(None, b"abX"), 1), (_run(None, b""), 0)],
)
def test_first_difference(run: Run, index: int) -> None:
    found = compare(run, REFERENCE)
    assert found is not None
    assert (found.index, found.gap) == (index, REFERENCE.gaps[index])


def test_ratio_is_taken_within_a_repeat() -> None:
    """A machine that is twice as slow in one repeat must not move the ratio."""
    records = [
        _record(system, _run([7, 8, 9], decode_s=decode_s * (repeat + 1)), repeat)
        for repeat in range(2)
        for system, decode_s in ((System(UPSTREAM, 3), 2.0), (System(PLAIN, 0), 1.0))
    ]
    rows = {row.system: row for row in summarise(records)}
    assert rows["plain"].tokens_per_s_range == (50, 100)
    assert rows["llama.cpp n=3"].ratio_range == (0.5, 0.5)
    assert rows["plain"].outside == pytest.approx(0.1)


def test_best_rows_are_compared() -> None:
    seconds = {
        System(UPSTREAM, 1): 2.0,
        System(UPSTREAM, 3): 4.0,
        System(OURS, 1): 3.0,
        System(OURS, 3): 1.0,
    }
    records = [
        _record(system, _run([7], decode_s=decode_s)) for system, decode_s in seconds.items()
    ]
    assert best(summarise(records)) == [Best("questions", "pydflash2 n=3", "llama.cpp n=1", 2.0)]
    assert best(summarise(records[:2])) == []


def test_a_narrow_terminal_and_a_file_get_whole_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [_run([7, 9], decode_s=seconds) for seconds in (0.01234, 0.0456)]
    system = System(OURS, -1)
    records = [_record(System(PLAIN, 0), run, repeat) for repeat, run in enumerate(runs)]
    records += [_record(system, run, repeat) for repeat, run in enumerate(runs)]
    difference = compare(runs[0], REFERENCE)
    rows = summarise([replace(record, difference=difference) for record in records])
    (row,) = (row for row in rows if row.system == system.name)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(report, "facts", lambda result: [])
    report.show(rows, {"runs": []})
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(row.system)
    )
    assert "\N{HORIZONTAL ELLIPSIS}" not in line
    assert line.split() == " ".join(report._cells(row)).split()


@pytest.mark.parametrize(("busy", "warns"), [(None, False), (0.1, False), (1.5, True)])
def test_a_busy_machine_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    busy: float | None,
    warns: bool,
) -> None:
    monkeypatch.setattr(environment.Interference, "foreign_seconds", lambda self: busy)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    environment.warn_if_busy()
    assert ("other processes use 1.5 cores" in capsys.readouterr().err) == warns
