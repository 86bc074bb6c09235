"""The recipes in CONTRIBUTING.md are what the tests do."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "native" / "toy_rule"


def code_blocks(language: str) -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_the_recipe_for_a_rule_is_the_toy_rule() -> None:
    assert code_blocks("cpp") == [(TOY / "rule_toy.cpp").read_text()]


def test_the_recipe_for_a_row_is_the_toy_rules() -> None:
    rows = re.findall(r"^DF2_RULE\(.*\)$", (TOY / "cpu_backend" / "rules.inc").read_text(), re.M)
    assert [block.strip() for block in code_blocks("c")] == [rows[0]]
