"""Implements ``explain``: explains a race of a run in prose."""

from __future__ import annotations

import json
from pathlib import Path

import click

from streamrace.repro.commands import flags


@click.command()
@click.argument("folder", metavar="RUN", type=flags.PATH)
@click.argument("race", metavar="RACE", default="1")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
@click.option("--report", is_flag=True, help="Also make the page with pictures of both timings.")
@click.option("--output", type=flags.PATH, help="With --report: the folder of the page, instead of RUN/explain-NUMBER.")
def explain(folder: Path, race: str, form: str, report: bool, output: Path | None) -> None:
    """Explain RACE of RUN: both accesses, what each waits for, the order around them, the missing edge, a timing in
    which the race shows, and its harm.

    RUN is the folder of a run; nothing is run again. RACE is its number, as 'streamrace check' prints it, or its place:
    file.py:function or file.py:line, of one access or of both with a comma between them. In a run without races,
    RACE is the number of a hang, or a pair that only chance orders.
    Exit status: 0 done, 2 there is no such run or race.
    """
    from streamrace.device.scripts import WrongUse
    from streamrace.reports.formats import writing
    from streamrace.reports.screen import explanation as screen
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions import hang_explanation
    from streamrace.repro.sessions.explanation import explain as explained
    from streamrace.repro.sessions.race_selection import chosen

    if output is not None and not report:
        raise WrongUse("--output is the folder of the page: add --report")
    if (hang := hang_explanation.explain(folder, race)) is not None:
        if report:
            raise WrongUse("a hang is on the run's own page: say 'streamrace report'")
        if form == "json":
            writing.write(json.dumps(hang._asdict(), indent=1) + "\n", None)
        else:
            screen.show_hang(Terminal(), hang, folder)
        return
    explanation = explained(chosen(folder, race, traced=False, held=True))
    page = None
    if report:
        from streamrace.reports.pages import explanation_page

        page = explanation_page.write(explanation, output or folder / f"explain-{explanation.number}")
    if form == "json":
        writing.write(explanation.text(), None)
        return
    screen.show(Terminal(), explanation, page)
