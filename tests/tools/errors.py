"""The one exception of the tests' tools and of the benchmark."""

from __future__ import annotations


class ToolError(Exception):
    """Something the person at the keyboard has to fix.

    ``problem`` says what is missing or failed, ``remedy`` the next command or setting to try.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n  remedy: {remedy}")
        self.problem = problem
        self.remedy = remedy
