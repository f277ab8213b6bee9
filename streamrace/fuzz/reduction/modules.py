"""Finds the user's own modules that a script imports: next to it, and not installed by a package manager."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MOST = 5  # modules that are copied into a test
_MOST_LINES = 600  # of all these modules


class NoProgram(Exception):
    """A file cannot be read as a program. The end of a sentence."""


@dataclass
class Imported:
    """The imports of a script. ``beside``: texts of the single-file modules in the script's folder, by file name.

    ``packages``: folders next to the script, which stay in place. ``installed``: all other imports, by full name.
    """

    beside: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    installed: list[str] = field(default_factory=list)

    @property
    def few(self) -> bool:
        return len(self.beside) <= MOST and sum(text.count("\n") for text in self.beside.values()) <= _MOST_LINES


def read(file: Path) -> str:
    """Return a program's text, decoded as it declares. Raises :class:`NoProgram`."""
    try:
        with tokenize.open(file) as opened:
            text = opened.read()
        ast.parse(text)
    except OSError as error:
        raise NoProgram(f"{file} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NoProgram(f"{file} is no program: {error}") from None
    return text


def imported(script: Path) -> Imported:
    """Return the imports of the script, and of the modules next to it. Raises :class:`NoProgram`."""
    result = Imported()
    waiting = [script]
    while waiting:
        for module in _names(ast.parse(read(waiting.pop()))):
            name = module.partition(".")[0]
            file, folder = script.parent / f"{name}.py", script.parent / name
            if folder.is_dir() and (any(folder.glob("*.py")) or (folder / "__init__.py").exists()):
                if name not in result.packages:
                    result.packages.append(name)
            elif file.is_file():
                if file.name not in result.beside and file.name != script.name:
                    result.beside[file.name] = read(file)
                    waiting.append(file)
            elif module not in result.installed:
                result.installed.append(module)
    return result


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
