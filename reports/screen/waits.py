"""What ``repro waits`` found, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from reports.data.checked import Checked
from reports.data.waits import FILE, WaitRow, WaitsFile
from reports.table import Cell, Table
from reports.text import duration, reports_on, typed

TONES = {"carries load": "bad", "fragile cover": "warn", "redundant": "good", "unknown": "soft"}


def show(console: Console, found: WaitsFile) -> None:
    """The scope first: all that follows is of that alone."""
    plain = {"highlight": False, "soft_wrap": True, "markup": False}
    console.print(found.scope, **plain)
    console.print(found.sentence(), **plain)
    if found.waits:
        console.print(table(found.waits))
    if found.together:
        console.print(f"Together these can go: {', '.join(found.together)}. {said(found)}", **plain)
    for row in found.waits:
        if row.live == "disagrees":
            console.print(Text(f"Trace and live run differ at {row.place}: {row.says}.", "red"))
    commands = [row for row in found.waits if row.command]
    for row in commands:
        console.print(f"Without {row.place} ({row.harm}):\n  {typed(row.command)}", **plain)


def where(console: Console, folder: Path, *, reported: bool) -> None:
    """Where it all lies."""
    console.print(f"Files: {folder}/{FILE}, findings.json, trace/", highlight=False, soft_wrap=True, markup=False)
    if not reported:
        console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def said(found: WaitsFile) -> str:
    """What a live run without all that can go said of it."""
    says = found.together_says or "That is by the trace alone"
    return f"{says[0].upper()}{says[1:]}."


def nothing(checked: Checked) -> str:
    """Why nothing is said of any wait."""
    return f"Nothing is said of its waits. {checked.sentence()}"


def escaped(text: str) -> str:
    return escape(text)


def table(rows: Sequence[WaitRow]) -> Table:
    """A row for each line."""
    return Table(
        "Each line's waits, taken away alone",
        ["line", "verdict", "held up", "without it"],
        [
            [
                Cell(row.place, "", f"{row.how}, {row.count} times"),
                Cell(row.verdict, TONES[row.verdict], _live(row)),
                duration(row.held_ns),
                row.instead(),
            ]
            for row in rows
        ],
    )


def _live(row: WaitRow) -> str:
    return {"agrees": "and live", "disagrees": "NOT live"}.get(row.live, "by the trace")
