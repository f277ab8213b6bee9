"""The layout of a table that is wider than the terminal: no figure, name or path is broken or cut.

Columns shrink to their longest word. Long texts that would become too narrow move below their row, over the full width,
with the name of their column. If the figures alone are too wide, all of a row but its first cell moves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import table as rich
from rich.console import RenderableType
from rich.text import Text

_NAME = 24  # characters up to which a row's name is not wrapped
_LONG, _LEAST = 48, 32  # a longer text than the first needs a column of the second
_GAP = 1


@dataclass(frozen=True)
class WideColumn:
    """A column: its head and its cells. ``right``: figures, aligned right and never wrapped."""

    head: str
    cells: Sequence[Text]
    right: bool

    @property
    def most(self) -> int:
        """The width in which nothing wraps."""
        return max(len(line) for text in (self.head, *(cell.plain for cell in self.cells)) for line in text.split("\n"))

    def least(self, *, first: bool) -> int:
        """Return the smallest width that breaks no word."""
        plain = [cell.plain for cell in self.cells]
        if self.right or (first and all(len(text.partition("\n")[0]) <= _NAME for text in plain)):
            cells = [line for text in plain for line in text.split("\n")]
        else:
            cells = [word for text in plain for word in text.split()]
        return max(map(len, [*cells, *self.head.split()]), default=1)


def lines(columns: Sequence[WideColumn], width: int) -> Iterator[RenderableType]:
    """Yield the head, a rule, and the rows, in ``width`` characters."""
    shown, below, widths = _laid_out(columns, width)
    if widths:
        yield _row([Text(columns[at].head) for at in shown], columns, shown, widths, "bold")
    yield Text("─" * (width if below else sum(widths) + _GAP * (len(widths) - 1)))
    for row in range(len(columns[0].cells)):
        if widths:
            yield _row([columns[at].cells[row] for at in shown], columns, shown, widths)
        else:
            yield from _wrapped(Text(", ").join(columns[0].cells[row].split("\n")), width, "")
        for text in _moved([columns[at] for at in below], row):
            yield from _wrapped(text, width, "  ")


def _laid_out(columns: Sequence[WideColumn], width: int) -> tuple[list[int], list[int], list[int]]:
    """Return the columns that stay, those that move below their rows, and the widths of the former.

    No widths: the first column is a line by itself, and all others move below it.
    """
    least = [column.least(first=not at) for at, column in enumerate(columns)]
    texts = sorted(
        (at for at, column in enumerate(columns) if at and not column.right), key=lambda at: -columns[at].most
    )
    for moved in range(len(texts) + 1):
        below = sorted(texts[:moved])
        shown = [at for at in range(len(columns)) if at not in below]
        widths = _shared([least[at] for at in shown], [columns[at].most for at in shown], width)
        given = dict(zip(shown, widths, strict=False))
        narrow = (least[0] > _NAME and given[at] < columns[at].most for at in texts[moved:]) if widths else ()
        long = (columns[at].most > _LONG and given[at] < _LEAST for at in texts[moved:]) if widths else ()
        if widths and not any((*narrow, *long)):
            return shown, below, widths
    return [], list(range(1, len(columns))), []


def _shared(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Return a width for each column between ``least`` and ``most``, the widest reduced first; empty: none fits."""
    widths, left = list(most), width - _GAP * (len(most) - 1)
    while sum(widths) > left:
        reducible = [at for at, given in enumerate(widths) if given > least[at]]
        if not reducible:
            return []
        widths[max(reducible, key=lambda at: widths[at])] -= 1
    return widths


def _row(
    cells: Sequence[Text], columns: Sequence[WideColumn], shown: Sequence[int], widths: Sequence[int], style: str = ""
) -> rich.Table:
    grid = rich.Table.grid(padding=(0, _GAP, 0, 0))
    for at, given in zip(shown, widths, strict=True):
        grid.add_column(width=given, justify="right" if columns[at].right else "left", overflow="fold", style=style)
    grid.add_row(*cells)
    return grid


def _moved(columns: Sequence[WideColumn], row: int) -> Iterator[Text]:
    """Yield the cells below a row: long texts by themselves, what is short in a paragraph."""
    filled = [column for column in columns if column.cells[row].plain]
    if short := [_named(column, row) for column in filled if column.most <= _NAME]:
        yield Text("; ").join(short)
    yield from (_named(column, row) for column in filled if column.most > _NAME)


def _named(column: WideColumn, row: int) -> Text:
    name = Text(f"{' '.join(column.head.split())}: ", "dim")
    return name.append_text(Text(", " if column.most <= _NAME else "; ").join(column.cells[row].split("\n")))


def _wrapped(text: Text, width: int, indent: str) -> Iterator[Text]:
    """Yield the text in lines of ``width``, but for words that are longer: they have a line of their own."""
    begin = end = 0
    breaks = []
    for word in re.finditer(r"\S+", text.plain):
        if word.end() - begin > width - len(indent) and end > begin:
            breaks.append((begin, end))
            begin = word.start()
        end = word.end()
    for first, last in [*breaks, (begin, end)]:
        yield Text(indent, no_wrap=True, overflow="ignore").append_text(text[first:last])
