"""Chat messages to prompt text, with the target's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jinja2
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from pydflash2._llama_cpp import Vocab
from pydflash2.errors import InvalidArgumentError, UnsupportedError

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""


class ChatTemplate:
    """The template in the target's file. Raises UnsupportedError if there is none, or it does not
    compile."""

    def __init__(self, vocab: Vocab) -> None:
        template = vocab.chat_template
        if template is None:
            raise UnsupportedError(
                "the target's file holds no chat template: it is probably not a chat model; "
                "format the prompt yourself and use generate or stream"
            )
        try:
            self._formatter = Jinja2ChatFormatter(
                template=template,
                eos_token=vocab.text(vocab.eos),
                bos_token=vocab.text(vocab.bos),
            )
        except jinja2.TemplateError as error:
            raise UnsupportedError(
                f"the target's chat template does not compile: {error}"
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt up to where the assistant's answer begins. InvalidArgumentError for malformed
        messages."""
        checked = [_checked(message) for message in messages]
        if not checked:
            raise InvalidArgumentError("there are no messages")
        try:
            return str(self._formatter(messages=checked).prompt)  # type: ignore[arg-type]
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"the target's chat template refuses these messages: {error}"
            ) from error


def _checked(message: Message) -> dict[str, str]:
    fields = dict(message) if isinstance(message, Mapping) else {}
    if not all(isinstance(fields.get(key), str) for key in ("role", "content")):
        raise InvalidArgumentError(
            f'a message is {{"role": text, "content": text}}, not {message!r}'
        )
    return fields
