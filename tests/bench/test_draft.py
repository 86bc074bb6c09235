"""Checks the bench of drafts: what it reads and concludes, on made-up times, and its models.

Needs no model and no build.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from bench.draft import our_times, upstream_times
from bench.draft_floor import (
    Draft,
    Limits,
    Matrix,
    draft_block_size,
    draft_matrices,
    draft_vocabulary,
    floor,
)
from bench.draft_report import DraftRow, DraftRun, DraftSystem, markdown, summarise
from bench.systems import OURS, UPSTREAM, Rendered, parse_upstream
from tests.tools.errors import ToolError
from tests.tools.synthetic_pair import PAIRS, Pair, synthetic_pair

OURS_WHOLE = DraftSystem(OURS, is_reduced=False)
OURS_REDUCED = DraftSystem(OURS, is_reduced=True)
UPSTREAM_WHOLE = DraftSystem(UPSTREAM, is_reduced=False)
LIMITS = Limits(read_bytes=1e9, int8_operations=1e9, float_operations=1e8)
MATRICES = {
    False: [Matrix("fc", "Q8_0", 10_000, 2_000_000, "fed")],
    True: [Matrix("fc", "Q8_0", 10_000, 1_000_000, "fed")],
}
LOG = """\
0.01.505.667 I encoded    3 tokens in    0.150 seconds, speed:   20.000 t/s
0.01.505.677 I decoded   20 tokens in    2.000 seconds, speed:   10.000 t/s
0.01.505.721 I spec common_specu: statistics     draft-dflash: #calls(b,g,a) =    1     10     10, \
#gen drafts =     10, #acc drafts =     5, #gen tokens =     20, #acc tokens =     10, \
#mean acc len = 2.00, #acc rate/pos = (0.500, 0.500), dur(b,g,a) = 0.002, 300.000, 0.010 ms
0.01.505.727 I common_perf_print:    sampling time =      10.00 ms
0.01.505.734 I common_perf_print: prompt eval time =    1640.00 ms /    46 tokens (    3.94 ms)
0.01.505.735 I common_perf_print:        eval time =      10.00 ms /     1 runs   (    8.67 ms)
"""


def _run(
    system: DraftSystem, ms: float, turn: int = 0, prompt: str = "p", fed_ms: float | None = None
) -> DraftRun:
    return DraftRun(
        system=system,
        n_draft=3,
        round=turn,
        prompt=prompt,
        draft_ms=10 * ms,
        fed_ms=10 * (ms if fed_ms is None else fed_ms),
        n_cycles=10,
        n_decoded=20,
        foreign_cpu_s=0.0,
    )


def _rows(runs: list[DraftRun], limits: list[Limits] | None = None) -> dict[str, DraftRow]:
    return {row.system: row for row in summarise(runs, limits or [LIMITS] * 3, MATRICES)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return synthetic_pair("tiny", folder=tmp_path_factory.mktemp("pair"))


def test_reads_upstream_times() -> None:
    prompt = Rendered(text="Hi", tokens=[1, 2, 3])
    run = parse_upstream(b"\n\nHi there\n\n\n\n", LOG, prompt=prompt, n_max=2)
    found = upstream_times(run)
    # 2000 in all, less 1500 of verifying and 10 of sampling, leaves feeding beside the draft's 300
    assert found == pytest.approx(
        {"draft_ms": 300.0, "fed_ms": 490.0, "n_cycles": 10, "n_decoded": 20}
    )


def test_reads_our_times() -> None:
    reply = {"draft_us": 5000, "n_cycles": 4, "n_whole_drafts": 4, "n_decoded": 9}
    assert our_times(reply) == {"draft_ms": 5.0, "fed_ms": 5.0, "n_cycles": 4, "n_decoded": 9}


@pytest.mark.parametrize(
    ("n_cycles", "n_whole", "problem"), [(4, 3, "1 of 4 drafts"), (0, 0, "nothing was drafted")]
)
def test_times_of_no_use_are_errors(n_cycles: int, n_whole: int, problem: str) -> None:
    reply = {"draft_us": 1, "n_cycles": n_cycles, "n_whole_drafts": n_whole, "n_decoded": 9}
    with pytest.raises(ToolError, match=problem):
        our_times(reply)


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is twice as slow in one round must not move a ratio."""
    rows = _rows(
        [
            _run(system, ms * (turn + 1), turn, fed_ms=fed_ms * (turn + 1))
            for turn in range(2)
            for system, ms, fed_ms in (
                (OURS_WHOLE, 1.0, 1.0),
                (UPSTREAM_WHOLE, 4.0, 5.0),
                (OURS_REDUCED, 0.5, 0.5),
            )
        ]
    )
    assert rows["pydflash2"].ms_range == (1.0, 2.0)
    assert rows["pydflash2"].ratio_range == (0.25, 0.25)
    assert rows["pydflash2"].fed_ratio == pytest.approx(0.2)
    assert rows["pydflash2 reduced"].ratio == pytest.approx(0.125)
    assert rows["llama.cpp"].ratio is None
    assert rows["llama.cpp"].fed_ms == pytest.approx(7.5)


def test_prompts_count_by_their_cycles() -> None:
    rows = _rows([_run(OURS_WHOLE, 1.0), _run(OURS_WHOLE, 3.0, prompt="q")])
    assert rows["pydflash2"].ms == pytest.approx(2.0)


def test_unfinished_rounds_are_left_out() -> None:
    runs = [
        _run(OURS_WHOLE, 1.0),
        _run(OURS_WHOLE, 1.0, prompt="q"),
        _run(OURS_WHOLE, 9.0, turn=1),
    ]
    assert _rows(runs)["pydflash2"].ms_range == (1.0, 1.0)


def test_floor_is_that_of_the_round_and_the_drafter() -> None:
    """2 MB at 1 GB/s take 2 ms, in a round of twice the speed 1 ms; the reduced drafter half."""
    fast = Limits(2 * LIMITS.read_bytes, LIMITS.int8_operations, LIMITS.float_operations)
    rows = _rows(
        [
            _run(OURS_WHOLE, 6.0),
            _run(OURS_WHOLE, 4.0, turn=1),
            _run(OURS_REDUCED, 6.0),
            _run(UPSTREAM_WHOLE, 6.0),
        ],
        [LIMITS, fast],
    )
    assert rows["pydflash2"].times_floor == pytest.approx((6 / 2 + 4 / 1) / 2)
    assert rows["pydflash2 reduced"].times_floor == pytest.approx(6.0)
    assert rows["llama.cpp"].times_floor is None


def test_floor_is_the_longer_of_reading_and_multiplying() -> None:
    matrices = [
        Matrix("fc", "Q8_0", 1000, 1000, "fed"),
        Matrix("attn_k", "Q8_0", 1000, 1000, "fed and block"),
        Matrix("ffn", "F16", 1000, 2000, "block"),
        Matrix("head", "Q6_K", 1000, 1000, "drafted"),
    ]
    found = floor(matrices, Draft(n_draft=3, n_fed=2.0), LIMITS)
    assert found.reading_ms == pytest.approx(5e-3)
    # rows: 2, 2 + 4 and 3 in integers, 4 in floating point at a tenth of the speed
    assert found.multiplying_ms == pytest.approx(2e-3 * (2 + 6 + 3) + 2e-2 * 4)
    assert found.ms == found.multiplying_ms


def test_table_shows_every_row() -> None:
    rows = summarise([_run(UPSTREAM_WHOLE, 123.4), _run(OURS_WHOLE, 4.0)], [LIMITS], MATRICES)
    lines = markdown(rows, ["a fact"]).splitlines()
    assert "- a fact" in lines
    assert "| 3 | llama.cpp | 123 (123-123) | - | 123 | - | - | - | - |" in lines
    ours = (
        "| 3 | pydflash2 | 4.00 (4.00-4.00) | 0.03 (0.03-0.03) | 4.00 | 0.03 | 2.00 | 0.04 | 2.00 |"
    )
    assert ours in lines


def test_head_is_the_targets_unless_the_drafter_has_one(pair: Pair) -> None:
    shape = PAIRS["tiny"]
    n_embd = shape.target.n_embd
    whole, reduced = (draft_matrices(d, pair.target) for d in (pair.drafter, pair.reduced))
    assert whole[:-1] == reduced[:-1]
    assert (whole[-1].name, whole[-1].kind) == ("token_embd.weight", "Q6_K")
    assert whole[-1].n_weights == shape.target.n_vocab * n_embd
    assert (reduced[-1].name, reduced[-1].n_weights) == ("output.weight", shape.n_reduced * n_embd)
    assert draft_vocabulary(pair.drafter) is None
    assert draft_vocabulary(pair.reduced) == shape.n_reduced


def test_block_size_is_the_drafters(pair: Pair) -> None:
    assert draft_block_size(pair.reduced) == PAIRS["tiny"].block_size
    with pytest.raises(ToolError, match="no DFlash drafter"):
        draft_block_size(pair.target)


def test_all_but_tables_and_vectors_is_multiplied(pair: Pair) -> None:
    shape = PAIRS["tiny"].drafter
    names = {matrix.name: matrix for matrix in draft_matrices(pair.drafter, pair.target)}
    per_layer = 9  # q, k, v, output, gate, up, down and two projections of convolutions
    assert len(names) == per_layer * shape.n_layer + len(("fc", "selector_hidden", "head"))
    uses = {name.removeprefix("blk.0."): matrix.use for name, matrix in names.items()}
    assert uses["fc.weight"] == "fed"
    assert uses["attn_k.weight"] == uses["attn_v.weight"] == "fed and block"
    assert uses["attn_q.weight"] == uses["ffn_conv_proj.weight"] == "block"
    assert uses["selector_hidden.weight"] == uses["token_embd.weight"] == "drafted"


def test_pair_shares_one_tokenizer(pair: Pair) -> None:
    tokens = [
        GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
        for path in (pair.target, pair.drafter, pair.reduced)
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(set(tokens[0])) == PAIRS["tiny"].target.n_vocab


def test_unknown_pair_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="one of qwen3-4b"):
        synthetic_pair("7b", folder=tmp_path)
