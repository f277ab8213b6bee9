"""Implements ``hang``: explains a hang of a real cluster from the dumps of torch's flight recorder."""

from __future__ import annotations

from pathlib import Path

import click

from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output


@click.command()
@click.argument("dumps", metavar="DUMPS...", nargs=-1, required=True, type=flags.PATH)
@json_output
def hang(dumps: tuple[Path, ...], put: Put) -> None:
    """Explain a hang of a real cluster: what does not fit, between which ranks, at which lines, and where each stands.

    DUMPS are the files that torch's flight recorder wrote, one for each rank, with the rank at the end of the name, as
    nccl_trace_rank_0; or their folder. Torch's JSON is read, too. Nothing in a file is executed.
    Exit status: 0 neither was found, 2 a file cannot be read or is of another job, 5 an order may hang, 6 a hang.
    """
    from streamrace.detectors.hang.detector import Hangs
    from streamrace.reports.data.flight_recorder import files_in, read
    from streamrace.reports.data.hang_dumps import HangInDumps
    from streamrace.reports.screen import hang_dumps
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions.dumps import records

    made = records(read(files_in(dumps)))
    detector = Hangs(made.names)
    for rank, some in made.of.items():
        detector.feed(rank, some)
    detector.finish()
    result = HangInDumps.of(detector.findings(), detector.stands, made.unseen)
    hang_dumps.show(Terminal(), result)
    put(result.text())
    if result.status:
        raise SystemExit(result.status)
