"""``python tools/budget.py``: checks that each room of the product keeps to its number of lines in ``pyproject.toml``.

Exit status 0 if so; 1 and a sentence for each room that has more. The commit that raises a room's number explains why.
A room that has shrunk by more than a fiftieth is reported too, so that its number follows.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_COUNTED = {".py", ".cpp", ".h", ".toml", ".html", ".css", ".md", ".j2", ".js"}


def lines(room: str) -> int:
    """Count the lines of all text files in the room."""
    files = [path for path in (_ROOT / room).rglob("*") if path.suffix in _COUNTED] or [_ROOT / room]
    return sum(len(path.read_bytes().splitlines()) for path in files)


def wrong(budget: dict[str, int]) -> list[str]:
    """Return a sentence for each room that does not keep to its number."""
    told = []
    for room, most in budget.items():
        has = lines(room)
        if has > most:
            told.append(
                f"{room} has {has:,} lines, and pyproject.toml gives it {most:,}: shorten it, or raise that and say why"
            )
        elif has < most - most // 50 - 10:
            told.append(f"{room} has {has:,} lines, far fewer than the {most:,} of pyproject.toml: lower that")
    return told


if __name__ == "__main__":
    found = wrong(tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["budget"])
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(bool(found))
