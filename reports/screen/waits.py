"""Prints the result of ``streamrace waits`` in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from streamrace.reports.data.findings import Findings
from streamrace.reports.data.waits import WaitsFile, basis, table
from streamrace.reports.text import reports_on, typed


def show(console: Console, waits: WaitsFile) -> None:
    """Print the result, with the scope first: all that follows applies to that scope only."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    say(waits.scope)
    say(waits.sentence())
    if waits.waits:
        console.print(table(waits.waits))
    if waits.together:
        say(f"Together these can go: {', '.join(waits.together)}. {basis(waits)}")
    for row in waits.waits:
        if row.live == "disagrees":
            console.print(Text(f"Trace and live run differ at {row.place}: {row.says}.", "red"))
    commands = [row for row in waits.waits if row.command]
    for row in commands:
        say(f"Without {row.place} ({row.harm}):\n  {typed(row.command)}")


def where(console: Console, folder: Path, *, reported: bool) -> None:
    """Print where the files are, and the command that writes the page unless ``reported``."""
    files = f"{folder}/{WaitsFile.NAME}, findings.json, trace/"
    console.print(f"Files: {files}", highlight=False, soft_wrap=True, markup=False)
    if not reported:
        console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def nothing(checked: Findings) -> str:
    """Return why no wait was judged."""
    return f"Its waits were not judged. {checked.sentence}"
