"""Each test that docs/concepts/memory.md names is there, and each of its rules names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.host


def test_each_rule_of_the_page_on_memory_is_held_by_a_test() -> None:
    page = (ROOT / "docs" / "concepts" / "memory.md").read_text(encoding="utf-8")
    rules = [line for line in page.splitlines() if line.startswith("|") and not re.match(r"\|(---| rule \|)", line)]
    assert len(rules) > 20
    named = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
    assert [rule for rule in rules if not named.search(rule)] == []
    for file, test in named.findall(page):
        place = ROOT / file if "/" in file else ROOT / "tests" / "device" / file
        functions = {node.name for node in ast.parse(place.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert test in functions, f"{file} has no {test}"
