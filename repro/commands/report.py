"""Implements ``report``: makes a page of runs, of a study, or of an incident of the live watch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from streamrace.reports.formats.names import NAMES

_LONGEST = 100  # characters of a name joined from several runs


@click.command()
@click.argument("folders", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The folder to write into; for an incident, and with --format, the file. [default: RUN/report, for several "
    "runs a folder of their names beside the first; with --format standard output]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(NAMES[1:]),
    help="Instead of a page: the findings of 'streamrace check' in RUN, for another tool.",
)
@click.option("--serve", is_flag=True, help="Serve the runs of a folder (RUN, or runs) on this machine's loopback.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="For --serve; 0: any free one. [default: 8000]"
)
def report(folders: tuple[Path, ...], output: Path | None, form: str | None, serve: bool, port: int) -> None:
    """Make a page of RUN, or of several runs side by side: verdict, race, curves, timeline, replay command.

    The page is one HTML file that opens without a network. The folder also gets report.md, findings.json and metrics.
    RUN may also be a folder of 'streamrace fuzz' (with runs, it fills the matrix of fixes and timings), of a dry run
    (several: steps, memory, and which is the fastest that fits), a sweep, placements or releases, or an incident that
    the watch saved.
    Exit status: 0 done, 2 a file cannot be read, compared or written.
    """
    if serve:
        _serve(folders, port)
        return
    if not folders:
        raise click.UsageError("Name at least one run, for example runs/unstable, or pass --serve.")
    if form is not None:
        _for_others(folders, form, output)
        return
    if len(folders) == 1 and (folders[0] / "incident.json").exists():
        _incident(folders[0], output)
        return
    from streamrace.reports.pages.folders import write
    from streamrace.trace.untrusted import visible

    target = output or _beside(folders) / "report"
    click.echo(visible(write(folders, target)))
    click.echo(visible(f"Report: {target / 'index.html'}"))


def _for_others(folders: Sequence[Path], form: str, output: Path | None) -> None:
    from streamrace.reports.formats import items, writing

    if len(folders) != 1:
        raise click.UsageError(f"--format {form} is of one run: name one.")
    text = writing.text(items.load(folders[0]), form)
    if output is not None and output.is_dir():
        raise click.UsageError(f"--output {output} is a folder: with --format it is a file.")
    writing.write(text, output)


def _beside(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0]
    from streamrace.reports.pages.folders import refuse_link

    names = "-and-".join(folder.resolve().name for folder in folders)
    default = folders[0].parent / (names if len(names) <= _LONGEST else f"{len(folders)}-runs")
    refuse_link(default)
    return default


def _incident(folder: Path, output: Path | None) -> None:
    from streamrace.detectors.live.incident import load
    from streamrace.reports.data.stamp import written
    from streamrace.reports.pages.folders import refuse_link
    from streamrace.reports.pages.incident_page import write_page
    from streamrace.trace.untrusted import visible

    incident = load(folder)
    target = output or folder / "report" / "index.html"
    refuse_link(target.parent)
    write_page(incident, target, when=written(folder / "incident.json"))
    click.echo(visible(incident.finding.sentence()))
    click.echo(visible(f"Page: {target}"))


def _serve(folders: Sequence[Path], port: int) -> None:
    if len(folders) > 1:
        raise click.UsageError("--serve takes one folder, that holds the runs.")
    from streamrace.reports.pages.serve import serve

    serve(
        folders[0] if folders else Path("runs"),
        port,
        lambda address: click.echo(f"Reports: {address} (only on this machine; Ctrl-C ends it)"),
    )
