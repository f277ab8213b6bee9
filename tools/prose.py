"""``python tools/prose.py``: are the product's docstrings sentences that an engineer reads once?

CONTRIBUTING.md, "How we write", has the rule and the reasons. Exit status 0 if so; 1 and a line for each that is not.
Ruff's D401 checks the imperative mood; this checks the words of the dialect that the code once had.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_ROOMS = ("detectors", "reports", "repro", "scenarios", "streamrace", "papers", "benchmarks", "mutants", "tools")
# Help texts and programs are read by users, who are addressed otherwise.
_OTHERS = re.compile(r"commands/|catalogue/[^/]+/|demo/|textbook\.py$")
_FIRST = ("As", "Does", "How", "Is", "It", "Of", "That", "There", "Those", "What", "Where", "Whether", "Who")
_WORDS = re.compile(rf"(?:{'|'.join(_FIRST)})\b(?!:)")
_PHRASES = re.compile(r"how-manieth|\bis let go\b|turned round")


def wrong(path: Path) -> Iterator[str]:
    """Yield a line for each docstring in ``path`` that begins with one of the words, or has one of the phrases."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node) or ""
        found = _WORDS.match(text) or _PHRASES.search(text)
        if found:
            yield f"{path}:{node.body[0].lineno}: a docstring with {found[0]!r}: see 'How we write' in CONTRIBUTING.md"


if __name__ == "__main__":
    files = [path for room in _ROOMS for path in (_ROOT / room).rglob("*.py")]
    told = [line for path in files if not _OTHERS.search(path.as_posix()) for line in wrong(path.relative_to(_ROOT))]
    print(*dict.fromkeys(told), sep="\n")
    sys.exit(bool(told))
