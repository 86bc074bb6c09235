"""Programs that decode with a session's context themselves, as those do that show the model an
image: the session says so instead of writing something else, and goes on once it may."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import pydflash2
from tests.e2e.test_recurrent import MARKS, SNAPSHOTS, context_of
from tests.tools.images import decode_image
from tests.tools.recurrent_targets import write_recurrent_target
from tests.tools.tiny_drafters import TinyDrafter, write_tiny_drafter
from tests.tools.tiny_targets import write_tiny_target

PROMPT = [7, 23, 99, 4, 31]
N_TOKENS = 24

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "positions in planes, marks": ("qwen35", MARKS),
    "positions in planes, snapshots": ("qwen35", SNAPSHOTS),
    "sliding windows": ("muse-glimmer", {}),
    "attention alone": ("llama", {}),
}

pytestmark = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


@pytest.fixture(scope="module")
def files(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets by architecture."""
    folder = tmp_path_factory.mktemp("targets")
    found = {"llama": tiny_target}
    for name, write in (("qwen35", write_recurrent_target), ("muse-glimmer", write_tiny_target)):
        found[name] = write(folder / f"{name}.gguf", name, tokenizer_from=tiny_target)
    return found


class Opened:
    """A context, and sessions on it."""

    def __init__(self, context: Any, drafter: pydflash2.Drafter) -> None:
        self.context, self.drafter = context, drafter
        self.memory = llama_cpp.llama_get_memory(context)
        self.target = pydflash2.Target.attach(context, n_batch=512)

    def session(self) -> pydflash2.Session:
        return pydflash2.Session(self.target, self.drafter, n_draft=5, ignore_end=True)

    def image(self, **options: Any) -> int:
        newest = llama_cpp.llama_memory_seq_pos_max(self.memory, options.get("sequence", 0))
        return decode_image(self.context, newest + 1, **options)


@pytest.fixture
def opened(
    request: pytest.FixtureRequest, files: dict[str, Path], tmp_path: Path
) -> Iterator[Opened]:
    architecture, options = TARGETS[request.param]
    path = files[architecture]
    shape = TinyDrafter(keys={"logit_scale": 1.0})  # about which there is nothing to warn
    drafter = write_tiny_drafter(tmp_path / "drafter.gguf", shape, target=path)
    with contextlib.ExitStack() as undo:
        context = undo.enter_context(context_of(path, **options))
        made = Opened(context, undo.enter_context(pydflash2.Drafter(drafter)))
        undo.callback(made.target.close)
        yield made


def text(session: pydflash2.Session) -> tuple[int, ...]:
    """A prompt and what follows, from wherever the session is."""
    if session.n_tokens == 0:
        session.prefill(PROMPT)
    while session.n_tokens < len(PROMPT) + N_TOKENS:
        session.step(len(PROMPT) + N_TOKENS - session.n_tokens)
    return session.tokens


PLACES: dict[str, Callable[[pydflash2.Session], object]] = {
    "before the prompt": lambda session: None,
    "behind the prompt": lambda session: session.prefill(PROMPT),
    "in the text": lambda session: (session.prefill(PROMPT), session.step(), session.step()),
}


@pytest.mark.parametrize("opened", TARGETS, indirect=True)
@pytest.mark.parametrize("place", PLACES)
def test_an_image_beside_a_session_is_an_error(opened: Opened, place: str) -> None:
    with opened.session() as session:
        expected = text(session)
    with opened.session() as session:
        PLACES[place](session)
        tokens = session.tokens
        opened.image()
        for call in (
            lambda: session.prefill(PROMPT),
            *([session.step] if tokens else []),
            *([lambda: session.rewind(2)] if len(tokens) > 2 else []),
        ):
            with pytest.raises(pydflash2.InvalidArgumentError, match="image"):
                call()
            assert session.tokens == tokens
        session.rewind(0)
        assert text(session) == expected


@pytest.mark.parametrize("opened", TARGETS, indirect=True)
def test_a_context_that_holds_an_image_is_cleared_with_a_warning(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pydflash2"):
        with opened.session() as session:
            expected = text(session)
        with opened.session() as session:
            assert text(session) == expected
        assert not caplog.messages  # what a session left is its own
        opened.image()
        with opened.session() as session:
            (warning,) = caplog.messages
            assert "cleared" in warning
            assert "images" in warning
            assert text(session) == expected


@pytest.mark.parametrize("opened", ["attention alone", "sliding windows"], indirect=True)
def test_a_memory_that_is_brought_back_is_gone_on_with(opened: Opened) -> None:
    with opened.session() as session:
        expected = text(session)
    with opened.session() as session:
        session.prefill(PROMPT)
        session.step()
        session.step()
        n_held = llama_cpp.llama_memory_seq_pos_max(opened.memory, 0) + 1
        opened.image()
        llama_cpp.llama_memory_seq_rm(opened.memory, 0, n_held, -1)
        assert text(session) == expected
    with opened.session() as session:
        session.prefill(PROMPT)
        llama_cpp.llama_memory_seq_rm(opened.memory, 0, 3, -1)
        with pytest.raises(pydflash2.InvalidArgumentError, match="has 3 positions"):
            session.step()


def test_what_another_sequence_decodes_is_not_picked(files: dict[str, Path]) -> None:
    """Between a prompt and its first token."""
    with context_of(files["llama"], n_seq_max=2, kv_unified=True) as context:
        target = pydflash2.Target.attach(context, n_batch=512)
        with target, pydflash2.Session(target, ignore_end=True) as session:
            expected = text(session)
            session.rewind(0)
            session.prefill(PROMPT)
            decode_image(context, 0, sequence=1)
            assert text(session) == expected
