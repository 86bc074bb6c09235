"""Chat templates as they are found in files: what they are given, and every way to fail."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pydflash2 import InvalidArgumentError, UnsupportedError
from pydflash2._chat import ChatTemplate


class Vocabulary:
    """As much of one as a template asks for."""

    bos, eos = 1, 2

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def text(self, token: int) -> str:
        return f"<{token}>"


USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}

# As of Gemma: line 2 refuses a system message, line 5 roles that do not alternate.
STRICT = """{{ bos_token }}
{%- if messages[0].role == "system" %}{{ raise_exception("System role not supported") }}{% endif %}
{%- for message in messages %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
{{- raise_exception("Conversation roles must alternate user/assistant") }}
{%- endif %}[{{ message.role }}]{{ message.content }}
{%- endfor %}"""


def render(template: str | None, *messages: Any, **variables: Any) -> str:
    made = ChatTemplate(Vocabulary(template))  # type: ignore[arg-type]
    return made.render(messages or [USER], variables)


def test_variables_reach_the_template() -> None:
    thinking = "{{ messages[0].content }}{{ '' if enable_thinking is false else '<think>' }}"
    assert render(thinking) == "Hi<think>"
    assert render(thinking, enable_thinking=False) == "Hi"
    tools = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    assert render(tools) == ""
    assert render(tools, tools=[{"name": "f"}, {"name": "g"}]) == '{"name": "f"}{"name": "g"}'
    assert render("{{ date_string or strftime_now('%Y') }}", date_string="1 May") == "1 May"
    assert re.fullmatch(r"2\d\d\d", render("{{ strftime_now('%Y') }}"))


def test_variables_may_replace_what_is_given_anyway() -> None:
    usual = "{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}A:{% endif %}"
    assert render(usual) == "<1><2>A:"
    assert render(usual, add_generation_prompt=False, bos_token="B") == "B<2>"


@pytest.mark.parametrize("variables", ["x", [("a", 1)], {1: 2}, {"messages": []}], ids=repr)
def test_bad_variables(variables: Any) -> None:
    made = ChatTemplate(Vocabulary("x"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="template_variables"):
        made.render([USER], variables)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("{{ raise_exception('Only tools, please') }}", "Only tools, please"),
        ("{{ raise_exception('') }}", "no reason given"),
        ("{{ raise_exception() }}", "no reason given"),
        ("{{ range(10 ** 9) | list }}", "OverflowError: Range too big"),
        ("{{ 1 // (messages | length - 1) }}", "ZeroDivisionError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ messages[0].__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0].content + 1 }}", "TypeError: "),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages | sum }}", "TypeError: "),
        ("{{ strftime_now(5) }}", "TypeError: "),
        ("{% include 'x' %}", "TemplateNotFound: x"),
        ("{{ 'x' * (messages | length * 2 * 10 ** 7) }}", "its text exceeds"),
        ("{% for i in range(99999) %}{{ ' ' * 999 }}{% endfor %}", "its text exceeds"),
        ("{{ 'x'.encode('latin-1').decode('utf-16') }}", "UnicodeDecodeError: "),
    ],
)
def test_whatever_a_template_fails_with_is_told(code: str, reason: str) -> None:
    made = f"{{# a comment #}}\n\n{code}\n"
    with pytest.raises(InvalidArgumentError) as caught:
        render(made)
    message = str(caught.value)
    assert message.startswith("the target's chat template refuses these messages: ")
    assert reason in message
    assert ("(line 3 of the template)" in message) == ("exceeds" not in message), message


@pytest.mark.parametrize(
    ("template", "line"),
    [("\n{% if %}", 2), ("{{ 'a' ", 1), ("\n\n{% nonsense %}", 3), ("{{ x | no_such_filter }}", 1)],
)
def test_templates_that_do_not_compile(template: str, line: int) -> None:
    with pytest.raises(UnsupportedError, match=f"does not compile.*line {line} of the template"):
        render(template)


def test_templates_that_compute_too_much_when_compiled() -> None:
    with pytest.raises(UnsupportedError, match="does not compile"):
        render("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_a_missing_template() -> None:
    with pytest.raises(UnsupportedError, match=r"holds no chat template.*use generate or stream"):
        render(None)


@pytest.mark.parametrize(
    ("messages", "reason", "advice"),
    [
        ([SYSTEM, USER], r"System role not supported \(line 2", "without the system message: put"),
        ([USER, USER], r"must alternate user/assistant \(line 5", "join messages of the same role"),
        ([USER, ANSWER, ANSWER], r"must alternate", "join messages of the same role"),
        ([SYSTEM, USER, USER], "System role not supported", "first user message, and join"),
        ([ANSWER, USER], r"must alternate user/assistant \(line 5 of the template\)$", ""),
    ],
)
def test_what_to_do_about_roles_that_are_refused(
    messages: list[Any], reason: str, advice: str
) -> None:
    assert render(STRICT, USER, ANSWER, USER) == "<1>[user]Hi[assistant]Hello[user]Hi"
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        render(STRICT, *messages)
    assert advice in str(caught.value)


def test_messages_of_tools() -> None:
    template = (
        "{% for m in messages %}{{ m.content or m.tool_calls[0].function.name }}|{% endfor %}"
    )
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    answer = {"role": "tool", "content": "3", "tool_call_id": "1"}
    assert render(template, USER, call, answer) == "Hi|f|3|"
    assert render(template, USER, {**call, "content": None}) == "Hi|f|"
    for wrong in ({"role": "user", "content": None}, {"role": "assistant", "tool_calls": []}):
        with pytest.raises(InvalidArgumentError, match="a message is"):
            render(template, wrong)
