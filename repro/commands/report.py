"""``report``: a page for a person, of runs or of an incident of the live watch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from reports.campaigns import Campaign
    from reports.loading import Run

_LONGEST = 100  # characters of a name made of several


@click.command()
@click.argument("folders", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The folder to write into; for an incident, the file. [default: RUN/report, for several runs a folder of "
    "their names beside the first]",
)
@click.option("--serve", is_flag=True, help="Serve the runs of a folder (RUN, or runs) on this machine's loopback.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="For --serve; 0: any free one. [default: 8000]"
)
def report(folders: tuple[Path, ...], output: Path | None, serve: bool, port: int) -> None:
    """Make a page of RUN, or of several runs side by side: verdict, race, curves, timeline, how to replay.

    One file of HTML that opens without a network, and beside it report.md, findings.json, metrics. RUN may also be what
    'repro fuzz' left (beside runs it fills the matrix of fixes and timings), a sweep, placements or releases, or an
    incident that the watch saved.
    Exit status: 0 done, 2 something cannot be read, compared or written.
    """
    if serve:
        _serve(folders, port)
        return
    if not folders:
        raise click.UsageError("Name at least one run, for example runs/unstable, or pass --serve.")
    from reports.html import visible

    target = output or _beside(folders) / "report"
    if all(map(_is_campaign, folders)):
        from reports import campaign_page, campaigns

        with _writing(target):
            sentence = campaign_page.write([campaigns.load(folder) for folder in folders], target)
    elif len(folders) == 1 and (folders[0] / "incident.json").exists():
        _incident(folders[0], output)
        return
    elif len(folders) == 1 and (folders[0] / "study.json").exists():
        from reports import study_folder, study_page

        study = study_folder.load(folders[0])
        study_page.write(study, target)
        sentence = study.sentence
    else:
        from reports import campaigns, loading

        runs = [loading.load(folder) for folder in folders if not _is_campaign(folder)]
        sentence = write(runs, target, [campaigns.load(folder) for folder in folders if _is_campaign(folder)])
    click.echo(visible(sentence))
    click.echo(f"Report: {target / 'index.html'}")


def write(runs: Sequence[Run], target: Path, campaigns: Sequence[Campaign] = ()) -> str:
    """Write the report of ``runs`` into the folder ``target``; gives its sentence. ``campaigns``: for the matrix.

    Raises :class:`reports.loading.ReportError` where they cannot be compared or the folder cannot be written.
    """
    from reports import bundle, html, run_page, summary
    from reports.loading import comparable

    comparable(runs)
    with _writing(target):
        files = run_page.told_of(bundle.write(runs, target))
        html.write(run_page.page(runs, files, campaigns), target / "index.html")
    return summary.headline(runs)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    from reports.loading import ReportError

    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"cannot write the report into {target}: {why}; choose another --output") from error


def _beside(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0]
    names = "-and-".join(folder.resolve().name for folder in folders)
    return folders[0].parent / (names if len(names) <= _LONGEST else f"{len(folders)}-runs")


def _is_campaign(folder: Path) -> bool:
    return (folder / "timings.json").is_file()


def _incident(folder: Path, output: Path | None) -> None:
    from detectors.live.incident import load
    from reports.html import visible
    from reports.incident_page import write_page

    incident = load(folder)
    target = output or folder / "report" / "index.html"
    write_page(incident, target)
    click.echo(visible(incident.finding.sentence()))
    click.echo(f"Page: {target}")


def _serve(folders: Sequence[Path], port: int) -> None:
    if len(folders) > 1:
        raise click.UsageError("--serve takes one folder, that holds the runs.")
    from reports.serve import serve

    serve(
        folders[0] if folders else Path("runs"),
        port,
        lambda address: click.echo(f"Reports: {address} (only on this machine; Ctrl-C ends it)"),
    )
