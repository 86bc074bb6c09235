"""Conversations with models whose templates have variables, or refuse what they are given; and
streams that were not read to their end."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydflash2
from tests.tools.renamed_target import write_renamed_target

TEMPLATE = """{% for message in messages %}
{%- if message.role == "system" %}{{ raise_exception("no system messages") }}{% endif %}
{{- message.content }}
{%- endfor %}{% if style is defined %}{{ style }}{% endif %}"""

QUESTION = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def target(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "target.gguf"
    return write_renamed_target(path, tiny_target, chat_template=TEMPLATE)


@pytest.fixture
def llm(target: Path, tiny_drafter: Path) -> Iterator[pydflash2.Llama]:
    with pydflash2.load(target, tiny_drafter, n_ctx=256, n_draft=3) as opened:
        yield opened


def test_template_variables(llm: pydflash2.Llama) -> None:
    plain = llm.chat(QUESTION, max_tokens=6)
    assert plain.tokens == llm.generate("abc", max_tokens=6).tokens
    prompt = llm.format_chat(QUESTION, template_variables={"style": "de"})
    assert prompt == llm.tokenize("abcde", add_special=False)
    expected = llm.generate(prompt, max_tokens=6).tokens
    got = llm.chat(QUESTION, template_variables={"style": "de"}, max_tokens=6)
    assert got.tokens == expected
    chunks = llm.stream_chat(QUESTION, template_variables={"style": "de"}, max_tokens=6)
    assert tuple(token for chunk in chunks for token in chunk.tokens) == expected


def test_a_variable_in_the_wrong_place_is_told(llm: pydflash2.Llama) -> None:
    options: dict[str, object] = {"enable_thinking": False}
    with pytest.raises(TypeError, match=r"'enable_thinking'.*template_variables"):
        llm.chat(QUESTION, **options)  # type: ignore[arg-type]


def run(folder: Path, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pydflash2", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )


def test_on_the_command_line(llm: pydflash2.Llama, target: Path, tmp_path: Path) -> None:
    common = ("-m", target, "-c", "256", "-n", "6")
    expected = llm.chat(QUESTION, template_variables={"style": "de"}, max_tokens=6).text + "\n"
    style = ("--template-var", "style=de")
    done = run(tmp_path, "generate", *common, "--chat", *style, "abc")
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    done = run(tmp_path, "chat", *common, *style, stdin="abc\n")
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    done = run(tmp_path, "generate", *common, *style, "abc")
    assert done.returncode == 1
    assert "--chat" in done.stderr
    done = run(tmp_path, "chat", *common, "--system", "Be brief.", stdin="abc\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no system messages (line 2 of the template); it takes them without" in done.stderr


# -- Streams -------------------------------------------------------------------------------------


def test_a_stream_that_is_dropped_is_closed(llm: pydflash2.Llama) -> None:
    expected = llm.generate([5, 6, 7], max_tokens=20).tokens
    for chunk in llm.stream([5, 6, 7], max_tokens=20):
        first = chunk.tokens
        break
    gc.collect()
    assert llm.session.tokens == (5, 6, 7, *first)
    assert llm.generate([5, 6, 7], max_tokens=20).tokens == expected


def test_a_stream_left_open_by_an_exception_can_be_closed(llm: pydflash2.Llama) -> None:
    expected = llm.generate([5, 6, 7], max_tokens=20).tokens

    def fail() -> None:
        chunks = llm.stream([5, 6, 7], max_tokens=20)
        for _ in chunks:
            raise LookupError

    with pytest.raises(LookupError) as caught:
        fail()
    with pytest.raises(pydflash2.InvalidArgumentError, match=r"still open.*close_stream\(\)"):
        llm.generate([5, 6, 7])
    llm.close_stream()
    assert llm.generate([5, 6, 7], max_tokens=20).tokens == expected
    llm.close_stream()
    assert caught.tb is not None  # which holds the stream


def test_of_two_streams_the_second_waits(llm: pydflash2.Llama) -> None:
    expected = [llm.generate(prompt, max_tokens=9).tokens for prompt in ([5, 6, 7], [8, 9])]
    first, second = llm.stream([5, 6, 7], max_tokens=9), llm.stream([8, 9], max_tokens=9)
    head = next(first).tokens
    with pytest.raises(pydflash2.InvalidArgumentError, match="still open"):
        next(second)
    assert head + tuple(t for chunk in first for t in chunk.tokens) == expected[0]
    again = llm.stream([8, 9], max_tokens=9)  # an error ends a generator
    assert tuple(t for chunk in again for t in chunk.tokens) == expected[1]


def test_a_stream_is_not_closed_while_it_generates(llm: pydflash2.Llama) -> None:
    messages: list[str] = []

    def on_prefill(n_done: int, n_total: int) -> None:
        with pytest.raises(pydflash2.InvalidArgumentError) as caught:
            llm.close_stream()
        messages.append(str(caught.value))

    got = llm.generate([5, 6, 7], max_tokens=5, on_prefill=on_prefill)
    assert len(got.tokens) == 5
    assert messages == ["the stream is generating: it cannot be closed now"]


def test_a_stream_of_a_closed_model(target: Path) -> None:
    with pydflash2.load(target, n_ctx=256) as llm:
        chunks = llm.stream([5, 6, 7])
        next(chunks)
    with pytest.raises(pydflash2.InvalidArgumentError, match="closed"):
        next(chunks)
    llm.close_stream()
    chunks.close()
    assert not list(chunks)


def test_ctrl_c_between_two_chunks_closes_the_stream(
    llm: pydflash2.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of generate(), which nobody else could close while the exception is handled."""
    expected = llm.generate([5, 6, 7], max_tokens=20).tokens

    def interrupted(chunk: pydflash2.Chunk) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pydflash2.Chunk, "text", property(interrupted))
        try:
            llm.generate([5, 6, 7], max_tokens=20)
        except KeyboardInterrupt:
            patch.undo()
            assert llm.generate([5, 6, 7], max_tokens=20).tokens == expected
        else:
            pytest.fail("there was no interrupt")
