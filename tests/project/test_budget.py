"""What keeps the house from growing or rotting unseen: lines of each room, and tests in parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.budget import lines, wrong

ROOT = Path(__file__).resolve().parents[2]


def test_a_room_that_has_more_lines_than_it_is_given_is_named() -> None:
    has = lines("streamrace/trace")
    assert wrong({"streamrace/trace": has}) == []
    assert wrong({"streamrace/trace": has - 1})[0].startswith(f"streamrace/trace has {has:,} lines, and pyproject.toml")
    assert wrong({"streamrace/trace": 2 * has}) == [
        f"streamrace/trace has {has:,} lines, far fewer than the {2 * has:,} of pyproject.toml: lower that"
    ]


def test_four_parts_of_the_tests_are_all_of_them_and_each_is_in_one() -> None:
    def collected(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/trace", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    parts = [collected("--part", f"{part}/4") for part in range(4)]
    assert sorted(one for part in parts for one in part) == sorted(collected())
    assert all(parts)
