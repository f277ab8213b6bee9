"""Prints the result of ``streamrace fix`` in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from streamrace.reports.data.fixes import DIFF, FixFile, best_of_each, table
from streamrace.reports.text import reports_on, typed
from streamrace.trace.wording import duration

_DIFF = {"+": "green", "-": "red", "@": "cyan"}  # colours by the line's first character


def show(console: Console, fixes: FixFile) -> None:
    """Print the race, the result, the candidates, and the diff."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    say(f"Race {fixes.number} of {fixes.run}: {fixes.race.kind}: {fixes.race.first}; {fixes.race.second}")
    say(f"Missing: {fixes.missing}.")
    say(fixes.sentence())
    if fixes.rows:
        console.print(table(best_of_each(fixes)))
    if fixes.end_ns is None:
        say(f"What they cost is not known: {fixes.no_schedule}.")
    else:
        say(f"Costs are virtual time, of the {duration(fixes.end_ns)} that the run took.")
    if fixes.rows:
        say("All of this holds for this program with these arguments, and for the branches that it took.")
    if fixes.untried:
        say(f"Nothing was tried live: {fixes.untried}.")
    if fixes.taken is not None:
        for line in fixes.taken.diff.splitlines():  # a line that is longer than the terminal stays whole, to be copied
            console.print(Text(line, _DIFF.get(line[:1], "")), highlight=False, soft_wrap=True)


def where(console: Console, folder: Path, fixes: FixFile, *, reported: bool) -> None:
    """Print where the files are, and the command that writes the page unless ``reported``."""
    diff = f", {DIFF}" if fixes.taken is not None else ""
    console.print(f"Files: {folder}/{FixFile.NAME}{diff}", highlight=False, soft_wrap=True, markup=False)
    if not reported:
        console.print(f"Page:  {typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)
