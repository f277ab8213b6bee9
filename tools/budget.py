"""``python tools/budget.py``: has each room of the product at most the lines that ``pyproject.toml`` gives it?

Exit status 0 if so; 1 and a sentence for each room that has more. A room that needs more says why in the commit that
raises its number. One that has become smaller by more than a fiftieth is told too, so that its number follows it.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_COUNTED = {".py", ".cpp", ".h", ".toml", ".html", ".css", ".md", ".j2", ".js"}


def lines(room: str) -> int:
    """Of all that is written in the room."""
    files = [path for path in (_ROOT / room).rglob("*") if path.suffix in _COUNTED] or [_ROOT / room]
    return sum(len(path.read_bytes().splitlines()) for path in files)


def wrong(budget: dict[str, int]) -> list[str]:
    """A sentence for each room that does not keep to its number."""
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
