"""Ordinary prompts, as many as a test wants: every kind of request about every subject."""

from __future__ import annotations

REQUESTS = (
    "Explain {} to a ten-year-old.",
    "What are three surprising facts about {}?",
    "Write a short poem about {}.",
    "List the steps to learn more about {}.",
    "Summarise the history of {} in a paragraph.",
    "Write a Python function that prints five words about {}.",
    "What is the difference between {} and ordinary life?",
    "Give me arguments for and against {}.",
    "Write a letter to a friend about {}.",
    "Make a table with two columns about {}.",
)

SUBJECTS = (
    "rainbows",
    "the Roman Empire",
    "bread baking",
    "black holes",
    "chess",
    "the human heart",
    "electric cars",
    "volcanoes",
    "jazz music",
    "honey bees",
    "public libraries",
    "the printing press",
    "whales",
    "vaccines",
    "mountain climbing",
    "coffee",
    "bridges",
    "the moon",
    "gardening",
    "computer programs",
)


def questions(n: int) -> list[str]:
    """The first n of the 200 combinations, kinds and subjects mixed."""
    pairs = [
        (REQUESTS[i % len(REQUESTS)], SUBJECTS[(i + i // len(REQUESTS)) % len(SUBJECTS)])
        for i in range(len(REQUESTS) * len(SUBJECTS))
    ]
    return [request.format(subject) for request, subject in pairs[:n]]
