"""The files that the draft bench works on, and its prompts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tests.tools.errors import ToolError
from tests.tools.synthetic_pair import synthetic_pair

from . import environment
from .draft_floor import draft_block_size, draft_vocabulary
from .draft_report import DraftSystem
from .prompts import Prompt, prompts
from .systems import OURS, UPSTREAM, Rendered, ask_worker

# For random pairs, whose tokenizer spells everything byte by byte: feeding the prompt is in
# llama.cpp's `other` and has to stay small.
_GREETING = Prompt("questions", "greeting", "Hello!")


@dataclass(frozen=True, slots=True)
class Files:
    """One pair. ``reduced``: a drafter with a vocabulary of its own; ``is_random``: no real text
    comes out."""

    target: Path
    drafter: Path
    reduced: Path | None
    is_random: bool

    def systems(self) -> list[DraftSystem]:
        """All that take part."""
        choices = [False] if self.reduced is None else [False, True]
        return [DraftSystem(kind, reduced) for reduced in choices for kind in (UPSTREAM, OURS)]

    def drafter_of(self, system: DraftSystem) -> Path:
        """The file that a system drafts with."""
        return self.reduced if system.is_reduced and self.reduced else self.drafter


def find_files(arguments: argparse.Namespace) -> Files:
    """What the command line asks for."""
    given = (arguments.target, arguments.drafter, arguments.reduced_drafter)
    if arguments.shape:
        if any(given):
            raise ToolError(
                "--shape makes its own files", "leave out --target, --drafter, --reduced-drafter"
            )
        pair = synthetic_pair(arguments.shape)
        return Files(pair.target, pair.drafter, pair.reduced, is_random=True)
    target = arguments.target or environment.default_target()
    drafter = arguments.drafter or environment.DEMO_DRAFTER
    reduced: Path | None = arguments.reduced_drafter
    for path, option in (
        (target, "--target"),
        (drafter, "--drafter"),
        (reduced, "--reduced-drafter"),
    ):
        if path is not None and not path.is_file():
            raise ToolError(f"{path} is not a file", f"give an existing GGUF with {option}")
    for path, is_reduced in ((drafter, False), (reduced, True)):
        if path is not None and (draft_vocabulary(path) is not None) != is_reduced:
            raise ToolError(
                f"{path} has {'no' if is_reduced else 'a'} vocabulary of its own",
                "--drafter takes one without, --reduced-drafter one that "
                "`pydflash2 convert --draft-vocab` made",
            )
    return Files(
        target.resolve(), drafter.resolve(), reduced.resolve() if reduced else None, is_random=False
    )


def check_lengths(n_drafts: list[int], drafter: Path) -> None:
    """Refuses what llama.cpp's tool would cut down without being asked."""
    block_size = draft_block_size(drafter)
    if max(n_drafts) >= block_size:
        raise ToolError(
            f"the drafter's blocks of {block_size} hold no {max(n_drafts)} drafted tokens",
            f"--n-draft up to {block_size - 1}",
        )


def render_prompts(n_prompts: int, files: Files) -> dict[str, Rendered]:
    """Questions, or a greeting, in the target's chat template."""
    if files.is_random:
        return {_GREETING.name: greeting(files.target)}
    chosen = prompts(["questions"], n_prompts)
    return _rendered(files.target, chosen, [prompt.messages() for prompt in chosen])


def greeting(target: Path) -> Rendered:
    """A short prompt in a random target's chat template, without a system message."""
    return _rendered(target, [_GREETING], [_GREETING.messages()[1:]])[_GREETING.name]


def _rendered(
    target: Path, chosen: list[Prompt], messages: list[list[dict[str, str]]]
) -> dict[str, Rendered]:
    inspected = ask_worker(
        task="inspect", target=str(target), prompts=messages, filler="", n_context=0
    )
    return {
        prompt.name: Rendered(text=text, tokens=tokens)
        for prompt, text, tokens in zip(
            chosen, inspected["prompts"], inspected["prompt_tokens"], strict=True
        )
    }
