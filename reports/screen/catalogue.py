"""Prints the catalogue in the terminal, narrower than on its page, as a pipe has 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from streamrace.reports.data.catalogue import EntryRow, RanSide, cell, short
from streamrace.studies.table import Cell, Table


def table(rows: Sequence[EntryRow]) -> Table:
    """Return the table of the entries that ran."""
    return Table(
        "The catalogue",
        ["id", "affected", "fixed", "both lines, or the evidence; the witness"],
        [
            [
                Cell(row.id, "bad" if row.differs else "", row.library),
                _before(row.affected),
                cell(row.fixed),
                Cell(_lines(row.affected), "", _witness(row, row.affected)),
            ]
            for row in rows
            if row.affected
        ],
    )


def outcome(row: EntryRow) -> str:
    """Return the result of a finished entry, in a line."""
    if row.affected is None or row.fixed is None:
        return "not shown"
    change = f"{_before(row.affected).text} -> {row.fixed.verdict}"
    return f"{change}: NOT AS EXPECTED, {'; '.join(row.differs)}" if row.differs else change


def _before(ran: RanSide) -> Cell:
    shown = cell(ran)
    return shown._replace(text=f"{ran.verdict} ({ran.harm})") if ran.harm else shown


def _lines(ran: RanSide) -> str:
    return "\n".join(map(short, ran.lines)) or ran.evidence or ran.failure


def _witness(row: EntryRow, ran: RanSide) -> str:
    cost = "" if row.cost is None else f"the fix costs {row.cost:+.1%}"
    return "; ".join(filter(None, [ran.token, f"{ran.virtual_ns / 1e6:.2f} ms", cost]))
