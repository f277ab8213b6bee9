"""Finds the condition by which two ranks of a hang came to different calls, in the program's source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from streamrace.detectors import Hang
from streamrace.trace import wording
from streamrace.trace.records import Frame

_Lines = Callable[[str], Sequence[str] | None]
_LONGEST = 100  # characters of a condition
_LEAVES = ast.Continue | ast.Break | ast.Return


def parted(hang: Hang, lines_of: _Lines) -> str:
    """Return where the two ranks of the hang part, a clause; empty if the source does not show it.

    ``lines_of``: returns a file's lines, or None if they are not known.
    """
    one, other = hang.first, hang.second
    issues = one.issue, other.issue or other.last
    if issues[0] is None or issues[1] is None:
        return ""
    ways = [list(reversed(issue.stack)) for issue in issues if issue is not None]
    at = next((at for at, pair in enumerate(zip_longest(*ways)) if pair[0] != pair[1]), None)
    if at is not None:
        if any(len(way) <= at for way in ways):
            return ""
        frame, second = ways[0][at], ways[1][at]
        if (frame.file, frame.function) != (second.file, second.function):
            return ""
        for branch in _branches(lines_of(frame.file)):
            within, beyond = (_arm(branch, place.line) for place in (frame, second))
            if within != beyond:
                goes = (one.rank, other.rank) if within else (other.rank, one.rank)
                return f"they part at {_text(branch, frame.file)}: rank {goes[0]} goes there, rank {goes[1]} does not"
        lines = sorted((frame.line, second.line))
        for branch in _branches(lines_of(frame.file)):
            if lines[0] < branch.lineno < lines[1] and isinstance(branch.body[-1], _LEAVES):
                return f"they may part at {_text(branch, frame.file)}, which skips what follows"
    if at is None and other.issue is not None:
        loop = next((loop for frame in reversed(ways[0]) if (loop := _loop(frame, lines_of))), "")
        return f"both are in the loop at {loop}: its order or its values differ" if loop else ""
    for stand, way in zip((one, other), ways, strict=True):
        if stand.issue is not None and way[-1:] == [hang.common]:  # the same place, once more
            for frame in reversed(way[at:] if at is not None else way):
                if loop := _loop(frame, lines_of):
                    return f"the loop at {loop} goes on for longer on rank {stand.rank}"
    return ""


def _loop(frame: Frame, lines_of: _Lines) -> str:
    loops = (branch for branch in _branches(lines_of(frame.file)) if not isinstance(branch, ast.If))
    return next((_text(loop, frame.file) for loop in loops if _arm(loop, frame.line)), "")


def _branches(lines: Sequence[str] | None) -> Iterator[ast.If | ast.For | ast.While]:
    """Yield all conditions and loops of the source, the innermost of those around a line before the outer ones."""
    try:
        nodes = ast.walk(ast.parse("\n".join(lines or ())))
    except SyntaxError:
        return
    found = [node for node in nodes if isinstance(node, ast.If | ast.For | ast.While)]
    yield from sorted(found, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)


def _arm(branch: ast.If | ast.For | ast.While, line: int) -> str:
    """Return in which part of the statement the line is: body, else, or empty: in neither."""
    for name, statements in (("body", branch.body), ("else", branch.orelse)):
        if statements and statements[0].lineno <= line <= (statements[-1].end_lineno or statements[-1].lineno):
            return name
    return ""


def _text(branch: ast.If | ast.For | ast.While, file: str) -> str:
    if isinstance(branch, ast.For):
        text = f"for {ast.unparse(branch.target)} in {ast.unparse(branch.iter)}"
    else:
        text = f"{'if' if isinstance(branch, ast.If) else 'while'} {ast.unparse(branch.test)}"
    return f"{wording.line(file, branch.lineno, path=True)}, `{wording.cut(text, _LONGEST)}`"
