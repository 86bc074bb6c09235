"""`pydflash2 chat`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from pydflash2.cli import _arguments, _generate, _terminal
from pydflash2.errors import ContextFullError, InvalidArgumentError

if TYPE_CHECKING:
    from pydflash2 import GenerateOptions, Llama

EPILOG = """\
examples:
  pydflash2 chat
  pydflash2 chat -m target.gguf -d drafter.gguf --system "You answer in one sentence."

While chatting: /reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer.
"""

HINT = "/reset starts over, /quit ends, Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    _arguments.add_template(parser)
    _arguments.add_models(parser)
    _arguments.add_sampling(parser)
    _arguments.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Chats until the input ends, and returns the exit status."""
    _terminal.prepare_streams()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() line editing and history)
    with _arguments.open_llama(args) as llm:
        conversation = _Conversation(llm, args)
        # What the template does not take should be said before the first question is typed.
        conversation.prompt("")
        if sys.stdin.isatty():
            name = _arguments.model_paths(args)[0].name
            conversation.status.print(f"{name}: {HINT}", style="dim")
        while (line := _read_line()) is not None:
            if line == "/quit":
                break
            if line == "/reset":
                conversation.reset()
            elif line.startswith("/"):
                conversation.status.print(f"unknown command {line}: {HINT}", style="dim")
            elif line:
                conversation.answer(line)
    return 0


def _read_line() -> str | None:
    """The next line of input, or None at its end, which Ctrl-C at the prompt is too."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        if sys.stdin.isatty():
            print()
        return None


class _Conversation:
    def __init__(self, llm: Llama, args: argparse.Namespace) -> None:
        self._llm = llm
        self._options: GenerateOptions = _arguments.generate_options(args)
        self._writer = _terminal.Writer(_terminal.make_console(color=args.color))
        self.status = _terminal.make_console(stderr=True, color=args.color)
        self._system = args.system
        self._variables = _arguments.template_variables(args)
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, str]] = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": self._system})

    def prompt(self, question: str) -> list[int]:
        """The conversation with a next question, as tokens."""
        return self._llm.format_chat(
            [*self._messages, {"role": "user", "content": question}],
            template_variables=self._variables,
        )

    def answer(self, question: str) -> None:
        """Streams an answer. One that was stopped, or did not fit, is forgotten with its
        question."""
        try:
            meter = _generate.stream(
                self._llm, self.prompt(question), self._options, self._writer, self.status
            )
        except KeyboardInterrupt:
            self.status.print("stopped; the question is forgotten", style="dim")
            return
        except ContextFullError as error:
            self.status.print(f"{error}; or start over with /reset")
            return
        except InvalidArgumentError as error:  # bytes that are no text, from a pipe
            self.status.print(f"{error}; the question is forgotten", markup=False)
            return
        answer = self._llm.detokenize(meter.tokens)
        self._messages.append({"role": "user", "content": question})
        self._messages.append({"role": "assistant", "content": answer})
        is_drafting = self._llm.drafter is not None
        self.status.print(_terminal.summary(meter, is_drafting=is_drafting), style="dim")
