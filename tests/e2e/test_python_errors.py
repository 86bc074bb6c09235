"""Whatever is wrong comes back as an exception that says so, and the objects stay usable."""

from __future__ import annotations

import copy
import pickle
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydflash2
from tests.tools.recurrent_targets import write_recurrent_target
from tests.tools.tiny_targets import write_tiny_target


def test_missing_files(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    with pytest.raises(pydflash2.ModelFileError, match=r"missing\.gguf"):
        pydflash2.load(missing)
    with pytest.raises(pydflash2.ModelFileError, match=r"missing\.gguf"):
        pydflash2.load(tiny_target, missing)
    with pytest.raises(OSError, match=r"missing\.gguf"):
        pydflash2.load(missing, tiny_drafter)
    with pytest.raises(pydflash2.InvalidArgumentError, match="NUL"):
        pydflash2.load("a\0b")


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, 0.999])
@pytest.mark.parametrize("which", ["target", "drafter"])
def test_truncated_files(
    tiny_target: Path, tiny_drafter: Path, tmp_path: Path, which: str, kept: float
) -> None:
    source = tiny_target if which == "target" else tiny_drafter
    data = source.read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data[: kept if isinstance(kept, int) else int(len(data) * kept)])
    pair = (broken, tiny_drafter) if which == "target" else (tiny_target, broken)
    with pytest.raises(pydflash2.ModelFormatError, match=r"broken\.gguf"):
        pydflash2.load(*pair)


def test_git_lfs_pointers(tiny_target: Path, tmp_path: Path) -> None:
    pointer = tmp_path / "pointer.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    for files in ((pointer,), (tiny_target, pointer)):
        with pytest.raises(pydflash2.ModelFormatError, match="git lfs pull"):
            pydflash2.load(*files)


def test_files_in_each_others_place(tiny_target: Path, tiny_drafter: Path) -> None:
    with pytest.raises(pydflash2.ModelFormatError):
        pydflash2.load(tiny_target, tiny_target)
    with pytest.raises(pydflash2.ModelFormatError):
        pydflash2.load(tiny_drafter)


def test_a_drafter_of_another_model(smollm_target: Path, tiny_drafter: Path) -> None:
    with pytest.raises(pydflash2.MismatchError):
        pydflash2.load(smollm_target, tiny_drafter)


def test_a_drafter_of_another_version(tiny_target: Path, tiny_drafters: dict[str, Path]) -> None:
    v1, v2 = tiny_drafters["tiny-v1"], tiny_drafters["tiny-plain"]
    with pytest.raises(pydflash2.Dflash2Error, match="1"):
        pydflash2.load(tiny_target, v1, version=2)
    with pytest.raises(pydflash2.Dflash2Error, match="2"):
        pydflash2.load(tiny_target, v2, version=1)
    with pytest.raises(pydflash2.InvalidArgumentError, match="version"):
        pydflash2.load(tiny_target, v2, version=3)
    with pydflash2.Drafter(v2) as drafter, pytest.raises(pydflash2.InvalidArgumentError):
        pydflash2.load(tiny_target, drafter, version=1)
    with pytest.raises(pydflash2.InvalidArgumentError, match="version"):
        pydflash2.load(tiny_target, version=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_ctx", 0),
        ("n_batch", 0),
        ("n_threads", -1),
        ("n_draft", 8),
        ("n_draft", -2),
        ("n_draft", "many"),
        ("window", 0),
        ("cache_type", "q8"),
        ("cache_type", "q8_0"),  # heads of 16
        ("cache_type_k", "q8"),
        ("cache_type_v", "F16"),
        ("kernels", "no"),
        ("swa_full", 1),
        ("n_ctx", 5_000_000_000),
        ("n_ctx", 2**31 - 1),
    ],
)
def test_options_out_of_range(tiny_target: Path, tiny_drafter: Path, name: str, value: Any) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match=name):
        pydflash2.load(tiny_target, tiny_drafter, **{"n_ctx": 256, name: value})


@pytest.mark.parametrize("n_draft", [8, -1, 1.5, True])
def test_n_draft_stays_when_the_new_one_is_bad(tiny: pydflash2.Llama, n_draft: Any) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match="n_draft"):
        tiny.set_n_draft(n_draft)
    for expected in (7, 3):
        stats = tiny.generate([5, 6, 7], max_tokens=30).stats
        assert sum(n > 0 for n in stats.drafted_at) == expected
        tiny.set_n_draft(3)


def test_n_draft_says_what_is_allowed(tiny: pydflash2.Llama, tiny_target: Path) -> None:
    """In Python's terms: there, -1 is not a draft length."""
    allowed = re.escape('n_draft must be "auto" or an integer of 0 .. 7, not 99')
    with pytest.raises(pydflash2.InvalidArgumentError, match=allowed):
        tiny.set_n_draft(99)
    with pytest.raises(pydflash2.InvalidArgumentError, match='"auto" or 0 where there is no draft'):
        pydflash2.load(tiny_target, n_draft=4)


@pytest.mark.parametrize(
    "prompt",
    [[], [160], [-1], [2**31], [1.5], ["a"], b"abc", [None], None, "", "half a pair: \ud800"],
    ids=ascii,
)
def test_bad_prompts(tiny: pydflash2.Llama, prompt: Any) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError):
        tiny.generate(prompt)
    assert len(tiny.generate([5, 6, 7], max_tokens=3).tokens) == 3


def test_bad_options_are_told_by_the_call_itself(tiny: pydflash2.Llama) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match="max_tokens"):
        tiny.stream([5], max_tokens=0)
    with pytest.raises(TypeError, match="max_token"):
        tiny.stream([5], max_token=3)  # type: ignore[call-arg]


def test_steps_out_of_order(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    with pytest.raises(pydflash2.InvalidArgumentError):
        session.step()
    session.prefill([5, 6, 7])
    for n_tokens in (-1, 4):
        with pytest.raises(pydflash2.InvalidArgumentError, match="n_tokens"):
            session.rewind(n_tokens)
    with pytest.raises(pydflash2.InvalidArgumentError):
        session.step(0)
    with pytest.raises(pydflash2.InvalidArgumentError):
        session.draft(3)  # right after a prefill
    with pytest.raises(pydflash2.InvalidArgumentError):
        session.draft(0)
    assert session.tokens == (5, 6, 7)
    assert len(session.step().tokens) == 1


def test_chat_without_a_template(tiny: pydflash2.Llama) -> None:
    with pytest.raises(pydflash2.UnsupportedError, match="chat template"):
        tiny.chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "messages", [[], [{}], ["Hi"], [{"role": "user"}], [{"role": "user", "content": 3}]], ids=repr
)
def test_malformed_messages(smollm: pydflash2.Llama, messages: Any) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError):
        smollm.chat(messages)


def test_tokens_outside_the_vocabulary_have_no_text(tiny: pydflash2.Llama) -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match="vocabulary"):
        tiny.detokenize([160])


def test_drafting_needs_a_drafter(tiny_target: Path) -> None:
    with pydflash2.load(tiny_target, n_ctx=256) as llm:
        with pytest.raises(pydflash2.InvalidArgumentError, match="no drafter"):
            llm.set_drafting(True)
        llm.set_drafting(False)
        assert len(llm.generate([5, 6], max_tokens=4).tokens) == 4
    with pytest.raises(pydflash2.InvalidArgumentError, match="n_draft"):
        pydflash2.load(tiny_target, n_draft=4)


def test_closed_objects(tiny_target: Path, tiny_drafter: Path) -> None:
    llm = pydflash2.load(tiny_target, tiny_drafter, n_ctx=256)
    session, drafter = llm.session, llm.drafter
    stream = llm.stream([5, 6, 7])
    next(stream)
    llm.close()
    llm.close()
    assert drafter is not None
    for use in (
        lambda: next(stream),
        lambda: llm.generate([5]),
        lambda: llm.tokenize("a"),
        lambda: llm.detokenize([5]),
        lambda: llm.stats(),
        lambda: llm.target.context_address,
        lambda: llm.set_drafting(False),
        lambda: session.step(),
        lambda: session.prefill([5]),
        lambda: session.rewind(0),
        lambda: session.stats(),
        lambda: session.reset_stats(),
        lambda: drafter.info,
        lambda: pydflash2.Session(llm.target),
    ):
        with pytest.raises(pydflash2.InvalidArgumentError, match="closed"):
            use()


def test_leaving_everything_open(tiny_target: Path, tiny_drafter: Path, tmp_path: Path) -> None:
    """The interpreter ends with a model loaded and a stream under way: sessions go before models,
    and nothing is printed."""
    code = (
        "import pydflash2, sys\n"
        "llm = pydflash2.load(sys.argv[1], sys.argv[2], n_ctx=256)\n"
        "stream = llm.stream([5, 6, 7], temperature=0.5)\n"
        "print(len(next(stream).tokens))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tiny_target, tiny_drafter],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_closing_a_target_closes_its_session(tiny_target: Path) -> None:
    target = pydflash2.Target(tiny_target, n_ctx=256)
    session = pydflash2.Session(target)
    target.close()
    assert session.is_closed


def test_a_shared_drafter_stays_open(tiny_target: Path, tiny_drafter: Path) -> None:
    with pydflash2.Drafter(tiny_drafter) as drafter:
        pydflash2.load(tiny_target, drafter, n_ctx=256).close()
        assert not drafter.is_closed
        assert drafter.info.block_size == 8


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_handles_cannot_be_copied(
    tiny: pydflash2.Llama, tiny_drafter: Path, duplicate: Callable[[Any], Any]
) -> None:
    with pydflash2.Drafter(tiny_drafter) as drafter:
        for handle in (tiny, tiny.target, tiny.target.vocab, tiny.session, drafter):
            name = type(handle).__name__
            with pytest.raises(TypeError, match=f"a {name} cannot be copied.*make another one"):
                duplicate(handle)
        assert drafter.info.block_size == 8
    assert len(tiny.generate([5, 6, 7], max_tokens=3).tokens) == 3


def test_attach_takes_llama_cpp_python_models_only() -> None:
    with pytest.raises(pydflash2.InvalidArgumentError, match=r"llama_cpp\.Llama"):
        pydflash2.attach("model.gguf", "drafter.gguf")  # type: ignore[arg-type]


def test_a_second_thread_is_turned_away(tiny: pydflash2.Llama) -> None:
    session = tiny.session
    session.prefill([5, 6, 7])
    entered, leave = threading.Event(), threading.Event()

    def be_busy() -> None:
        with session._exclusive():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=be_busy)
    thread.start()
    entered.wait()
    for use in (session.step, session.stats, session.reset_stats, session.close):
        with pytest.raises(pydflash2.InvalidArgumentError, match="another thread"):
            use()
    leave.set()
    thread.join()
    assert len(session.step().tokens) == 1


def test_an_interrupt_while_a_model_loads_is_raised(smollm_target: Path) -> None:
    """llama.cpp logs while it loads, and what is raised in a callback of Python's is lost."""

    def interrupt(number: int, frame: object) -> None:
        raise TimeoutError("interrupted")

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(TimeoutError):
            pydflash2.load(smollm_target, n_ctx=256).close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "words"),
    [
        # what llama.cpp notices when it builds the graph
        ("qwen3", "rope.dimension_count", 14, "n_embd_head == n_rot"),
        # and when it computes it
        ("qwen35", "rope.dimension_count", 15, "odd or larger than a head"),
        ("qwen35", "rope.dimension_count", 34, "odd or larger than a head"),
        # what it divides by
        ("qwen35", "full_attention_interval", 0, "is 0; it must be between 1"),
    ],
)
def test_what_llama_cpp_would_end_the_process_for(
    architecture: str, key: str, value: int, words: str, tiny_target: Path, tmp_path: Path
) -> None:
    """Keys that contradict tensors or make no sense; nor are they a lack of memory."""
    write = write_tiny_target if architecture == "qwen3" else write_recurrent_target
    path = write(tmp_path / "target.gguf", architecture, tokenizer_from=tiny_target)
    data = bytearray(path.read_bytes())
    name = f"{architecture}.{key}".encode()
    struct.pack_into("<I", data, data.index(name) + len(name) + 4, value)  # behind its type
    path.write_bytes(data)
    for kernels in (True, False):
        with pytest.raises(pydflash2.ModelFormatError, match=words):
            pydflash2.plan(path, kernels=kernels)
        with pytest.raises(pydflash2.ModelFormatError, match=words):
            pydflash2.Target(path, kernels=kernels)
