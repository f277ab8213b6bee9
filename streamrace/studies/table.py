"""Defines tables, described once: columns with their formats, and rows of values.

Three renderers draw a table: the terminal (``console.print(table)``, by rich), pages (the macro ``table`` of
``reports/pages/templates/parts.html``) and Markdown (:func:`streamrace.reports.pages.markdown.table`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import table as rich
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.text import Text

from streamrace.studies.narrow_table import WideColumn, lines

if TYPE_CHECKING:
    import pandas as pd

_NAME = 24  # characters up to which a row's name is not wrapped
STYLES = {"good": "green", "warn": "yellow", "bad": "red", "soft": "dim", "strong": "bold"}


class Cell(NamedTuple):
    """A value with a tone or a second line.

    ``tone``: good, warn or bad for a verdict, soft for an aside, strong for a sum. ``below``: the second line, soft.
    """

    text: str
    tone: str = ""
    below: str = ""


class Column(str):
    """A column's name. ``form`` formats values that are no text, as ``.2f`` or ``{:.2f} s``, and aligns them right."""

    form: str
    right: bool

    def __new__(cls, name: str, form: str = "", *, right: bool = False) -> Column:
        cell = super().__new__(cls, name)
        cell.form, cell.right = form, right or bool(form)
        return cell

    @property
    def name(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Table:
    """A table of values: text, a :class:`Cell`, or a value for the column's format; None and NaN are empty.

    A column given as a plain string holds text. ``key``: the id of the table on a page. ``brief``: included in the text
    for an issue. ``sides``: the first column has the names of the rows, and the table needs no head.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    key: str = ""
    brief: bool = True
    sides: bool = False

    @property
    def head(self) -> list[Column]:
        return [column if isinstance(column, Column) else Column(column) for column in self.columns]

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows as they are shown."""
        return [[_cell(value, column) for value, column in zip(row, self.head, strict=True)] for row in self.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = self._rich(1)
        if self.sides or Measurement.get(console, options.update(width=10_000), drawn).maximum <= options.max_width:
            yield drawn
        else:
            cells = [[_text(cell) for cell in row] for row in self.cells]
            columns = [
                WideColumn(column, [row[at] for row in cells], column.right) for at, column in enumerate(self.head)
            ]
            if self.title:
                yield Text(self.title, "italic")
            yield from lines(columns, options.max_width)
        if self.note:
            yield Text(self.note)

    def _rich(self, padding: int) -> rich.Table:
        drawn = rich.Table(
            title=self.title or None,
            title_justify="left",
            box=None if self.sides else SIMPLE_HEAD,
            show_header=not self.sides,
            show_edge=False,
            pad_edge=False,
            padding=(0, padding, 0, 0),
        )
        for at, column in enumerate(self.head):
            justify: JustifyMethod = "right" if column.right else "left"
            named = not at and all(len(row[0].text) <= _NAME for row in self.cells)
            drawn.add_column(Text(column), justify=justify, no_wrap=column.right or named, overflow="fold")
        for row in self.cells:
            drawn.add_row(*(_text(cell) for cell in row))
        return drawn


def _cell(value: Any, column: Column) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, str):
        return Cell(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell("")
    return Cell(column.form.format(value) if "{" in column.form else format(value, column.form))


def _text(cell: Cell) -> Text:
    text = Text(cell.text, STYLES.get(cell.tone, ""))
    return text.append(f"\n{cell.below}", "dim") if cell.below else text


def each(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield a frame's rows, with its columns as attributes. The columns are dynamic, so rows are untyped."""
    yield from frame.itertuples(index=False)
