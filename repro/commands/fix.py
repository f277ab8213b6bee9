"""Implements ``fix``: finds what would order a race of a run, its cost, and a diff that was tried."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output

_NONE = 1


@click.command()
@click.argument("folder", metavar="RUN", type=flags.PATH)
@click.argument("race", metavar="RACE", default="1")
@click.option(
    "--tries",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Try this many candidates in live runs, the cheapest first, until one is clean. The script writes its files "
    "again.",
)
@click.option(
    "--output",
    type=flags.PATH,
    help="The folder for fix.json, fix.diff and the page. [default: RUN/fix-RACE's number]",
)
@click.option("--report", is_flag=True, help="Make the page of 'streamrace report' at once.")
@json_output
def fix(folder: Path, race: str, tries: int, output: Path | None, report: bool, put: Put) -> None:
    """Find a cure of RACE of RUN, the weakest order first: an event and a wait for it, a wait for a stream,
    record_stream, a synchronisation of the host.

    RUN is a folder of 'streamrace check', with its traces. RACE is its number, as 'streamrace check' prints it,
    or its place: file.py:function or file.py:line, of one access or of both with a comma between them. Each candidate
    is inserted into the trace, which is judged and timed again. The best is written as a diff, and tried: the program
    runs as if the lines stood in its files, which are not changed. Exit status: 0 a tried diff is clean, 1 there is
    none, 2 there is no such run or race.
    """
    from streamrace.reports.pages.folders import refuse_link
    from streamrace.reports.screen import fixes as screen
    from streamrace.reports.screen.console import Terminal
    from streamrace.reports.screen.working import Working
    from streamrace.repro.sessions import studied
    from streamrace.repro.sessions.fixing.session import fix as fixed
    from streamrace.repro.sessions.race_selection import chosen

    console = Terminal()
    selection = chosen(folder, race)
    target = output or folder / f"fix-{selection.number}"
    refuse_link(target)
    working = Working(Terminal(stderr=not console.is_terminal), "looking for a cure")
    with tempfile.TemporaryDirectory(prefix="fix-") as scratch, working as status:
        fixes = fixed(selection, Path(scratch), tries=tries, tell=status.update)
    target.mkdir(parents=True, exist_ok=True)
    fixes.write(target)
    screen.show(console, fixes)
    words = (str(folder), race)
    if report:
        studied.report(console, target, "fix", more=words, shown=False)
    else:
        studied.noted(target, "fix", more=words)
    screen.where(console, target, fixes, reported=report)
    put(fixes.text())
    if fixes.taken is None:
        raise SystemExit(_NONE)
