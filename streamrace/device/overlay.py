"""Inserts lines into source files without editing them: imported or run files are compiled as if they had these lines.

``STREAMRACE_OVERLAY`` names a file of JSON with the lines (:func:`write`). Each statement keeps its line number, and
an inserted line gets that of the statement next to it: a trace names the same places with the lines as without. Files
compiled with inserted lines are listed next to that file (:func:`used`), so that a run without them is noticed.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import runpy
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from streamrace.trace.untrusted import read_json

VARIABLE = "STREAMRACE_OVERLAY"
_USED = ".used"
_installed: list[str] = []


class Insertion(NamedTuple):
    """``text``, a line with its indentation and without its end, is inserted in front of ``line`` (from 1).

    ``at``: the line number that the inserted line gets.
    """

    line: int
    text: str
    at: int


def put_in(lines: Sequence[str], insertions: Sequence[Insertion]) -> tuple[list[str], list[int]]:
    """Return the lines with the insertions, and the number of each. Insertions before one line keep their order."""
    merged: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate([*lines, None], 1):
        for insertion in insertions:
            if insertion.line == number:
                merged.append(insertion.text)
                numbers.append(insertion.at)
        if line is not None:
            merged.append(line)
            numbers.append(number)
    return merged, numbers


def lines_of(path: Path) -> list[str]:
    """Return a file's lines as Python counts them, without ends. Raise OSError, SyntaxError, UnicodeDecodeError."""
    with tokenize.open(path) as file:
        return file.read().removesuffix("\n").split("\n")


def write(files: Mapping[Path, Sequence[Insertion]], file: Path) -> dict[str, str]:
    """Write the lines to insert into ``files`` (absolute paths). Return the environment of processes using them."""
    data = {str(path.resolve()): [list(insertion) for insertion in insertions] for path, insertions in files.items()}
    file.write_text(json.dumps(data) + "\n", encoding="utf-8")
    _noted(file).unlink(missing_ok=True)
    return {VARIABLE: str(file.absolute())}


def used(file: Path) -> set[Path]:
    """Return the files that were compiled with the lines that :func:`write` wrote to ``file``."""
    try:
        return {Path(line) for line in _noted(file).read_text(encoding="utf-8").splitlines()}
    except OSError:
        return set()


def install() -> None:
    """Compile all later imports with the lines of ``STREAMRACE_OVERLAY``, if it is set. Later calls do nothing."""
    place = os.environ.get(VARIABLE)
    if not place or place in _installed:
        return
    _installed.append(place)
    overlay = _Overlay(Path(place))
    loader: Any = importlib.machinery.SourceFileLoader
    plain = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        code = overlay.code(self.path)  # neither taken from __pycache__ nor put there
        return plain(self, name) if code is None else code

    def compiled(source: Any, filename: Any, mode: str, **keywords: Any) -> Any:
        code = overlay.code(filename)
        return compile(source, filename, mode, **keywords) if code is None else code

    loader.get_code = get_code
    runner: Any = runpy
    runner.compile = compiled  # a script is not a module: runpy compiles its code by this function


class _Overlay:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._of = {path: [Insertion(*fields) for fields in entries] for path, entries in read_json(file).items()}

    def code(self, filename: str | bytes) -> CodeType | None:
        """Return the code of a file with inserted lines; None for other files."""
        path = os.path.realpath(os.fsdecode(filename))
        if path not in self._of:
            return None
        lines, numbers = put_in(lines_of(Path(path)), self._of[path])
        tree = ast.parse("\n".join(lines) + "\n", filename=path)
        _renumber(tree, numbers)
        with _noted(self._file).open("a", encoding="utf-8") as noted:
            noted.write(path + "\n")
        code: CodeType = compile(tree, os.fsdecode(filename), "exec", dont_inherit=True)
        return code


def _renumber(tree: ast.Module, numbers: Sequence[int]) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg, ast.keyword, ast.alias, ast.pattern)):
            continue
        node.lineno = numbers[node.lineno - 1]
        end = node.end_lineno or 0
        node.end_lineno = max(node.lineno, numbers[end - 1]) if end else node.lineno
        if node.end_lineno == node.lineno and (node.end_col_offset or 0) < node.col_offset:
            node.end_col_offset = node.col_offset


def _noted(file: Path) -> Path:
    return file.with_name(file.name + _USED)
