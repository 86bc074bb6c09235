"""`pydflash2 generate`."""

from __future__ import annotations

import argparse
import codecs
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pydflash2.cli import _arguments, _terminal
from pydflash2.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pydflash2 import GenerateOptions, Llama

EPILOG = """\
examples:
  pydflash2 generate -m target.gguf -d drafter.gguf --chat "Why is the sky blue?"
  pydflash2 generate -m target.gguf -d drafter.gguf -n 64 "Once upon a time"
  pydflash2 generate -m target.gguf -d drafter.gguf --compare --file prompt.txt
  echo "Once upon a time" | pydflash2 generate > story.txt

The text goes to stdout, the line with the figures to stderr.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = EPILOG
    parser.add_argument("prompt", nargs="?", help="the prompt; - or nothing reads it from stdin")
    parser.add_argument(
        "-f", "--file", type=Path, metavar="FILE", help="read the prompt from a file"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="take stdin or --file as it is: without dropping a byte order mark and one final "
        "line break",
    )
    parser.add_argument(
        "--chat", action="store_true", help="put the prompt into the target's chat template"
    )
    _arguments.add_template(parser)
    parser.add_argument(
        "--compare",
        action="store_true",
        help="afterwards decode the same prompt without drafting, and compare speed and text",
    )
    _arguments.add_models(parser)
    _arguments.add_sampling(parser)
    _arguments.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Generates, and returns the exit status."""
    if args.template_var and not args.chat:
        raise InvalidArgumentError("--template-var is about the chat template: give --chat too")
    prompt = _prompt(args)
    options = _arguments.generate_options(args)
    _terminal.prepare_streams()
    writer = _terminal.Writer(_terminal.make_console(color=args.color))
    status = _terminal.make_console(stderr=True, color=args.color)
    with _arguments.open_llama(args) as llm:
        if args.compare and llm.drafter is None:
            raise InvalidArgumentError("--compare needs a drafter to compare with: give -d FILE")
        ids = (
            llm.format_chat(
                [{"role": "user", "content": prompt}],
                template_variables=_arguments.template_variables(args),
            )
            if args.chat
            else llm.tokenize(prompt)
        )
        meter = stream(llm, ids, options, writer, status)
        plain = measure_plain(llm, ids, options) if args.compare else None
        line = _terminal.summary(meter, plain, is_drafting=llm.drafter is not None)
        status.print(line, style="dim")
    return 0


def stream(
    llm: Llama,
    prompt: list[int],
    options: GenerateOptions,
    writer: _terminal.Writer,
    status: Console,
) -> _terminal.Meter:
    """Generates onto the writer, with progress for a long prompt; returns what was measured."""
    meter = _terminal.Meter()
    with _terminal.prefill_progress(status) as on_prefill:
        watched: GenerateOptions = {**options, "on_prefill": on_prefill}
        chunks = llm.stream(prompt, **watched)
        try:
            for chunk in meter.watch(chunks):
                writer.write(chunk)
        finally:
            writer.end_line()
    return meter


def measure_plain(llm: Llama, prompt: list[int], options: GenerateOptions) -> _terminal.Meter:
    """Decodes the same without drafting, and switches drafting on again."""
    llm.set_drafting(False)
    try:
        meter = _terminal.Meter()
        for _ in meter.watch(llm.stream(prompt, **options)):
            pass
        return meter
    finally:
        llm.set_drafting(True)


def _without_file_marks(data: bytes) -> bytes:
    """What was meant by a text that an editor or echo has ended with a line break: a model would
    take that for the end of a paragraph."""
    data = data.removeprefix(codecs.BOM_UTF8)
    return data.removesuffix(b"\r\n") if data.endswith(b"\r\n") else data.removesuffix(b"\n")


def _prompt(args: argparse.Namespace) -> str:
    if args.file is not None:
        if args.prompt is not None:
            raise InvalidArgumentError("give the prompt or --file, not both")
        data = args.file.read_bytes()
    elif args.prompt not in (None, "-"):
        return str(args.prompt)
    elif args.prompt is None and sys.stdin.isatty():
        raise InvalidArgumentError('there is no prompt: give one, e.g. "Once upon a time"')
    else:
        data = sys.stdin.buffer.read()
    if not args.raw:
        data = _without_file_marks(data)
    try:
        return str(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the prompt is not UTF-8 text: {error}") from error
