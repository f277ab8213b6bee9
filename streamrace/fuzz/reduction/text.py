"""Cuts parts out of a program's text: the rest stays as its author wrote it, including comments.

Parts are found in Python's own syntax tree, and cut out by their positions. Text generated from a tree
(:func:`ast.unparse`) would lose comments, quotes and line breaks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

_BODIES = ("body", "orelse", "finalbody")
_EMPTY_GOES = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.If, ast.Try)
_HEAD = re.compile(rb"^# /// [a-zA-Z0-9-]+\n(?:#.*\n)*?# ///[ \t]*\n", re.MULTILINE)
_BLANKS = re.compile(rb"\n(?:[ \t]*\n){3,}")


class Cut(NamedTuple):
    """The bytes ``begin`` to ``end`` of the text, and their replacement."""

    begin: int
    end: int
    instead: bytes = b""


class Text:
    """A program's text. Raises SyntaxError if it is not a program, ValueError if it has zero bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.raw = text.encode()
        self._lines = [0]
        for line in self.raw.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        """Return the offset of a part's first byte; of a decorated statement, that of the first ``@``."""
        decorators = getattr(node, "decorator_list", None)
        if decorators:
            first: ast.expr = decorators[0]
            return self.raw.rindex(b"@", 0, self._lines[first.lineno - 1] + first.col_offset)
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> int:
        """Return the offset after a part's last byte."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    @cached_property
    def statements(self) -> list[tuple[int, ast.stmt]]:
        """Return all statements in the order of the text, each with its depth."""
        return list(_statements(self.tree, 0))

    @cached_property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def cut(self, cuts: Sequence[Cut]) -> str:
        """Return the text without these cuts, which are disjoint or nested."""
        result, at = bytearray(), 0
        for begin, end, instead in sorted(cuts, key=lambda cut: (cut.begin, -cut.end)):
            if begin < at:
                continue
            result += self.raw[at:begin] + instead
            at = end
        result += self.raw[at:]
        return tidied(bytes(result))

    def without(self, statements: Collection[ast.stmt]) -> str:
        """Return the text without these statements. A block left empty goes with its statement, or gets a ``pass``."""
        removed = set(statements)
        self._emptied(removed)
        cuts: list[Cut] = []
        for body, may_be_empty in _blocks(self.tree):
            remaining = [statement for statement in body if statement not in removed]
            lost = [statement for statement in body if statement in removed]
            cuts += [self._of(statement) for statement in lost]
            if lost and not remaining and not may_be_empty:
                cuts = [cut for cut in cuts if cut not in {self._of(statement) for statement in lost}]
                cuts.append(Cut(self.begin(lost[0]), self.end(lost[-1]), b"pass"))
        return self.cut(cuts)

    def _emptied(self, removed: set[ast.stmt]) -> None:
        """Add statements whose bodies are removed completely."""
        for _, statement in reversed(self.statements):  # inner statements come after outer ones
            if isinstance(statement, _EMPTY_GOES):
                inner = [child for name in _BODIES for child in getattr(statement, name, ())]
                if inner and all(child in removed for child in inner):
                    removed.add(statement)

    def _of(self, statement: ast.stmt) -> Cut:
        """Return the cut of a statement with its lines, and the comments right above, unless it shares a line."""
        begin, end = self.begin(statement), self.end(statement)
        line = self.raw.rfind(b"\n", 0, begin) + 1
        behind = self.raw.find(b"\n", end)
        behind = len(self.raw) if behind < 0 else behind + 1
        after = self.raw[end:behind].strip()
        if self.raw[line:begin].strip() == b"" and (not after or after.startswith(b"#")):
            return Cut(self._above(line, self.raw[line:begin]), behind)
        if after.startswith(b";"):
            following = after[1:].lstrip()
            return Cut(begin, self.raw.index(following, end) if following else end + 1)
        before = self.raw[line:begin].rstrip()
        if before.endswith(b";"):
            return Cut(line + len(before) - 1, end)
        return Cut(begin, end)

    def _above(self, line: int, indent: bytes) -> int:
        """Return the offset of the comments that end at this line, at the same indentation."""
        while line > 0:
            above = self.raw.rfind(b"\n", 0, line - 1) + 1
            if not self.raw[above:line].startswith(indent + b"#"):
                break
            line = above
        return line


def tidied(raw: bytes) -> str:
    """Remove blank lines at the beginning, and limit them to two elsewhere."""
    return _BLANKS.sub(b"\n\n\n", raw).lstrip(b"\n").decode()


def bare(text: str) -> str:
    """Remove PEP 723 metadata in comments: it is for the tool that runs the program, and does not affect it."""
    return tidied(_HEAD.sub(b"", text.encode()))


def is_program(text: str) -> bool:
    try:
        compile(text, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return bool(text.strip())


def _statements(node: ast.AST, depth: int) -> Iterator[tuple[int, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield depth, child
            yield from _statements(child, depth + 1)
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(child, depth)


def _blocks(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield all blocks of statements, and whether the block may be empty."""
    for node in ast.walk(tree):
        for name in _BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body, node is tree
