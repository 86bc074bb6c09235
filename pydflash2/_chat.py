"""Chat messages to prompt text, with the target's own template."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

import jinja2
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from pydflash2._llama_cpp import Vocab
from pydflash2.errors import InvalidArgumentError, UnsupportedError

Message = Mapping[str, Any]
"""{"role": "system" | "user" | "assistant" | ..., "content": text}, and whatever else the template
reads, such as "tool_calls", with which the content may be None."""

_MAX_CHARACTERS = 1 << 24
"""Of a prompt: more than any context holds, and little enough to keep in memory."""


class _RefusedError(Exception):
    """What a template says with raise_exception."""


class ChatTemplate:
    """The template in the target's file. Raises UnsupportedError if there is none, or it does not
    compile."""

    def __init__(self, vocab: Vocab) -> None:
        source = vocab.chat_template
        if source is None:
            raise UnsupportedError(
                "the target's file holds no chat template: it is probably not a chat model; "
                "format the prompt yourself and use generate or stream"
            )
        eos, bos = vocab.text(vocab.eos), vocab.text(vocab.bos)
        try:
            formatter = Jinja2ChatFormatter(template=source, eos_token=eos, bos_token=bos)
        except Exception as error:
            # what a template computes from constants alone may fail in any way
            raise UnsupportedError(
                f"the target's chat template does not compile: {_told(error)}"
            ) from error
        # calling the formatter would not let variables replace those that it sets itself
        self._template: jinja2.Template = formatter._environment
        self._variables: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": True,
            "raise_exception": _refuse,
            "strftime_now": formatter.strftime_now,
            "tools": None,
            "tool_choice": None,
            "functions": None,
            "function_call": None,
        }

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The prompt up to where the assistant's answer begins. variables: what the template may
        read besides the messages. InvalidArgumentError for malformed messages or variables, and
        whatever the template fails with."""
        checked = [_checked(message) for message in messages]
        if not checked:
            raise InvalidArgumentError("there are no messages")
        _check_variables(variables)
        try:
            return self._text(checked, variables)
        except Exception as error:
            raise InvalidArgumentError(
                f"the target's chat template refuses these messages: {_told(error)}"
                f"{self._advice(checked, variables)}"
            ) from error

    def _text(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        text = io.StringIO()
        for part in self._template.generate({**self._variables, **variables, "messages": messages}):
            if text.tell() + len(part) > _MAX_CHARACTERS:
                raise _RefusedError(f"its text exceeds {_MAX_CHARACTERS:,} characters")
            text.write(part)
        return text.getvalue()

    def _advice(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """What the template would take instead, found out by trying."""
        for change, advice in _CHANGES:
            changed = change(messages)
            if not changed or changed == messages:
                continue
            try:
                self._text(changed, variables)
            except Exception:
                continue
            return advice
        return ""


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] != "system"]


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One message for several of the same role in a row."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            content = f"{joined[-1]['content'] or ''}\n\n{message['content'] or ''}"
            joined[-1] = {**joined[-1], "content": content}
        else:
            joined.append(message)
    return joined


_CHANGES: tuple[tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str], ...] = (
    (
        _without_system,
        "; it takes them without the system message: put its text at the beginning of the first "
        "user message",
    ),
    (_joined, "; it wants roles to alternate: join messages of the same role into one"),
    (
        lambda messages: _joined(_without_system(messages)),
        "; it takes them without the system message and with roles that alternate: put its text at "
        "the beginning of the first user message, and join messages of the same role into one",
    ),
)


def _refuse(message: object = "") -> NoReturn:
    raise _RefusedError(message)


def _told(error: Exception) -> str:
    """An error of a template, with its line."""
    text = str(error)
    if not isinstance(error, _RefusedError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    if isinstance(error, jinja2.TemplateSyntaxError):
        line: int | None = error.lineno
    else:
        line = _line_in(error.__traceback__)
    return f"{text or 'no reason given'} (line {line} of the template)" if line else text


def _line_in(traceback: TracebackType | None) -> int | None:
    """The innermost line of a template; jinja puts a frame of its own into the traceback."""
    line = None
    while traceback is not None:
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _check_variables(variables: Mapping[str, Any]) -> None:
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InvalidArgumentError(
            "template_variables must be a mapping of names to values, such as "
            f'{{"enable_thinking": False}}, not {variables!r}'
        )
    if "messages" in variables:
        raise InvalidArgumentError("template_variables must not hold the messages themselves")


def _checked(message: Message) -> dict[str, Any]:
    fields = dict(message) if isinstance(message, Mapping) else {}
    content = fields.setdefault("content", None)
    is_call = content is None and bool(fields.get("tool_calls"))
    if not isinstance(fields.get("role"), str) or not (isinstance(content, str) or is_call):
        raise InvalidArgumentError(
            f'a message is {{"role": text, "content": text}}, not {message!r}'
        )
    return fields
