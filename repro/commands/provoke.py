"""Implements ``provoke``: makes a race come the other way round on this machine's GPU."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output


@click.command()
@click.argument("folder", metavar="RUN", type=flags.PATH)
@click.argument("race", metavar="RACE")
@click.option(
    "--hold",
    "ms",
    metavar="MS",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Milliseconds for which the stream is held before the first access.",
)
@json_output
def provoke(folder: Path, race: str, ms: float, put: Put) -> None:
    """Run the program of RUN on this machine's GPU, with the stream of RACE's first access held before that access.

    The second access then comes first, if nothing orders the two. The program runs twice, once as it is, and what it
    prints is compared. RACE is a number or a place, as for explain, or the token of an earlier provocation, which says
    where and how long.
    Exit status: 0 it prints the same, 1 it prints something else, 2 it cannot be run.
    """
    from streamrace.reports.screen.console import Terminal
    from streamrace.reports.text import typed
    from streamrace.repro.sessions import provoking

    outcome = provoking.provoke(folder, race, ms)
    again = shlex.join(["streamrace", "provoke", str(folder), outcome.token])
    for line in (outcome.sentence(), f"Again: {typed(again)}"):
        Terminal().print(line, highlight=False, soft_wrap=True)
    put(json.dumps(outcome.as_dict(), indent=2))
    if outcome.line:
        raise SystemExit(1)
