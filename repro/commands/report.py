"""``report``: an incident of the live watch as a page for a person."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), help="The file to write. [default: FOLDER/report/index.html]"
)
def report(folder: Path, output: Path | None) -> None:
    """Make a page of the incident in FOLDER: what was found, where it came from, how it spread.

    One file of HTML that opens without a network. Exit status: 0 done, 2 FOLDER is no incident that can be read,
    or the page cannot be written.
    """
    from detectors.live.incident import load
    from reports.html import visible
    from reports.incident_page import write_page

    incident = load(folder)
    target = output or folder / "report" / "index.html"
    write_page(incident, target)
    click.echo(visible(incident.finding.sentence()))
    click.echo(f"Page: {target}")
