"""Implements ``explain``: explains a race of a run in prose."""

from __future__ import annotations

from pathlib import Path

import click

from streamrace.repro.commands import flags


@click.command()
@click.argument("folder", metavar="RUN", type=flags.PATH)
@click.argument("race", metavar="RACE", default="1")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For whom."
)
@click.option("--report", is_flag=True, help="Make the page with the pictures of both timings, too.")
@click.option("--output", type=flags.PATH, help="With --report: the folder of the page, where not RUN/explain-NUMBER.")
def explain(folder: Path, race: str, form: str, report: bool, output: Path | None) -> None:
    """Tell RACE of RUN: both accesses, what each waits for, the order that there is around them, the edge that is
    missing, in which timing it shows, and what it does.

    RUN is the folder of a run; nothing is run again. RACE is its number, as 'streamrace check' prints it, or its place:
    file.py:function or file.py:line, of one access or of both with a comma between them. In a run without races, the
    pairs that only chance orders are counted instead.
    Exit status: 0 done, 2 there is no such run or race.
    """
    from streamrace.device.scripts import WrongUse
    from streamrace.reports.screen import explanation as screen
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions.explanation import explain as explained
    from streamrace.repro.sessions.race_selection import chosen

    if output is not None and not report:
        raise WrongUse("--output is the folder of the page: add --report")
    explanation = explained(chosen(folder, race, traced=False, held=True))
    page = None
    if report:
        from streamrace.reports.pages import explanation_page

        page = explanation_page.write(explanation, output or folder / f"explain-{explanation.number}")
    if form == "json":
        from streamrace.reports.formats import writing

        writing.write(explanation.text(), None)
        return
    screen.show(Terminal(), explanation, page)
