"""Implements ``kernels``: compares the model of kernels with published measurements."""

from __future__ import annotations

from pathlib import Path

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags


@click.command()
@flags.folder("folder that takes the table", "kernels", replaces="a table")
def kernels(name: str, runs: Path, overwrite: bool) -> None:
    """The model of kernels beside what others have measured: products, attention, memory.

    A dry run, and every other command with a hardware profile, times kernels by this model. Nothing is run.
    """
    from streamrace.reports.screen import calibrated
    from streamrace.repro.sessions import folders, staging
    from streamrace.studies import kernels as study

    frame = study.study()
    folder = folders.make(runs / name, {"study": "kernels"}, overwrite=overwrite)
    frame.to_csv(folder / "kernels.csv", index=False)
    folder = staging.commit(folder)
    console = Terminal()
    calibrated.published(console, study.summary(frame), study.SOURCES)
    console.print(f"Files: {folder}/kernels.csv", highlight=False)
