"""The two groups of prompts, reported apart because drafting fares so differently on them."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

# What SmolLM2's chat template puts in when a conversation brings no system message. llama.cpp's
# built-in template code knows the format but not this default, so it is spelled out.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, under a name that the results use."""

    group: str
    name: str
    text: str

    def messages(self) -> list[dict[str, str]]:
        """The conversation that the target's chat template is given."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.text}]


# Ordinary questions, chosen because SmolLM2-135M answers each of them with 160 tokens or more.
_QUESTIONS = {
    "budget": "Explain what a budget is and how a student could start one.",
    "rome": "What should I see on a first visit to Rome?",
    "bicycle": "Describe how a bicycle stays upright while it moves.",
    "lighthouse": "Write a short story about a lighthouse keeper and a lost whale.",
    "city": "What are the advantages and disadvantages of living in a big city?",
    "refrigerator": "How does a refrigerator keep food cold?",
}

# Text with a lot of repetition or a fixed form: lists, tables, code, quoting.
_STRUCTURED = {
    "numbers": "List the numbers from one to fifty, each on its own line.",
    "table": "Write the multiplication table of 7, from 7 x 1 to 7 x 20, one line each.",
    "html": "Write an HTML table with the seven days of the week and their order.",
    "stack": (
        "Write a Python class Stack with the methods push, pop, peek, is_empty and size, each "
        "with a docstring."
    ),
    "fibonacci": (
        "Write a Python program that prints the first twenty Fibonacci numbers, and test it "
        "with assert statements."
    ),
    "quote": (
        'Copy the following text word for word. "In the spring the river rises. In the summer '
        "the river falls. In the autumn the river carries leaves. In the winter the river "
        "freezes. The fish wait below the ice, the birds wait above it, and the miller waits in "
        "his house by the bridge. When the ice breaks, the wheel turns again, and the village "
        "has bread. So it was last year, so it was the year before, and so it will be next "
        'year."'
    ),
}

GROUPS = {"questions": _QUESTIONS, "structured": _STRUCTURED}


def filler() -> str:
    """Ordinary text to put ahead of a question: Python's own documentation, from its beginning.

    Every installation brings it along; it differs a little from one version of Python to the next.
    """
    return "\n".join(topics[name] for name in sorted(topics))


def prompts(groups: list[str], per_group: int | None = None) -> list[Prompt]:
    """The prompts of the named groups, at most ``per_group`` of each."""
    return [
        Prompt(group=group, name=name, text=text)
        for group in groups
        for name, text in list(GROUPS[group].items())[:per_group]
    ]
