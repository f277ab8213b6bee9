"""What ``repro waits`` found, in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from reports.data.checked import Checked
from reports.data.waits import FILE, WaitsFile, said, table
from reports.text import reports_on, typed


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


def nothing(checked: Checked) -> str:
    """Why nothing is said of any wait."""
    return f"Nothing is said of its waits. {checked.sentence()}"


def escaped(text: str) -> str:
    return escape(text)
