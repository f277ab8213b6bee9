"""Searches for a smaller program by hierarchical delta debugging.

Misherghi and Su, "HDD: Hierarchical Delta Debugging", ICSE 2006: delta debugging (:mod:`streamrace.fuzz.shrink`) level
by level of the syntax tree, the outermost first, so that an early removal takes much with it. Statements that use a
removed name are removed too (:mod:`streamrace.fuzz.reduction.names`), without which most trials would be wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from streamrace.fuzz.reduction import smaller
from streamrace.fuzz.reduction.names import with_users
from streamrace.fuzz.reduction.text import Text, bare, is_program

Files = Mapping[str, str]
"""A program's files by name; the first is run."""

_MANY = 12  # statements of one level: with more, groups of them are tried first


@dataclass(frozen=True)
class Reduced:
    """The reduced program. ``trials``: their number; ``whole``: False if they were too few to finish."""

    files: Files
    trials: int
    whole: bool


class _Spent(Exception):
    """The budget has been used up."""


def reduce(
    files: Files, holds: Callable[[Files], bool], *, budget: int, tell: Callable[[int, Files], None] = lambda *_: None
) -> Reduced:
    """Return the smallest program found that still ``holds``, as ``files`` do; at most ``budget`` trials, none twice.

    ``tell``: called before each trial, with the number of earlier trials and the files reached.
    """
    return _Reducing(files, holds, budget, tell).result()


class _Reducing:
    def __init__(
        self, files: Files, holds: Callable[[Files], bool], budget: int, tell: Callable[[int, Files], None]
    ) -> None:
        self._files = dict(files)
        self._holds, self._budget, self._tell = holds, budget, tell
        self._trials = 0
        self._known = {self._key(self._files)}

    def result(self) -> Reduced:
        complete = True
        try:
            # cuts that come early are of parts that nobody has to read, or shorten later trials
            self._each(lambda text: [bare(text.text)])
            self._each(smaller.fewer_rounds)
            before = None
            while before != self._files:
                before = dict(self._files)
                self._statements()
                self._each(smaller.without_unused_imports)
                self._each(smaller.fewer_rounds)
                self._each(smaller.unwrapped)
                self._each(smaller.fewer_items)
        except _Spent:
            complete = False
        return Reduced(self._files, self._trials, complete)

    @staticmethod
    def _key(files: Files) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(files.items()))

    def _try(self, name: str, text: str) -> bool:
        """Try another text of a file, and adopt it if the program still holds. An empty imported file is removed."""
        first = next(iter(self._files))
        if text.strip() == "" and name != first:
            changed = {other: inner for other, inner in self._files.items() if other != name}
        elif is_program(text):
            changed = {**self._files, name: text}
        else:
            return False
        key = self._key(changed)
        if key in self._known:
            return False
        if self._trials >= self._budget:
            raise _Spent
        self._known.add(key)
        self._tell(self._trials, self._files)
        self._trials += 1
        if not self._holds(changed):
            return False
        self._files = changed
        return True

    def _each(self, candidates: Callable[[Text], Sequence[str]]) -> None:
        """Try all ``candidates`` of each file, from the last to the first."""
        for name in list(self._files):
            texts = candidates(Text(self._files[name]))
            at = len(texts) - 1
            while at >= 0:
                if self._try(name, texts[at]):
                    if name not in self._files:
                        break
                    texts = candidates(Text(self._files[name]))
                    at = min(at, len(texts))
                at -= 1

    def _statements(self) -> None:
        for name in list(self._files):
            depth = 0
            while name in self._files and depth <= max(
                (level for level, _ in Text(self._files[name]).statements), default=0
            ):
                self._level(name, depth)
                depth += 1

    def _level(self, name: str, depth: int) -> None:
        """Reduce the statements of one level: first in groups of decreasing size, then one by one, from the end."""

        def indices() -> list[int]:
            return [at for at, (level, _) in enumerate(Text(self._files[name]).statements) if level == depth]

        size = len(indices()) // 2 if len(indices()) > _MANY else 1
        while size:
            end = len(indices())
            while end > 0:
                begin = max(0, end - size)
                text = Text(self._files[name])
                chosen = [text.statements[at][1] for at in indices()[begin:end]]
                if self._try(name, text.without(with_users(text.tree, chosen))) and name not in self._files:
                    return
                end = min(begin, len(indices()))
            size //= 2
