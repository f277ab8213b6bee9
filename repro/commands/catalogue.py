"""Implements ``catalogue``: runs known stream bugs, each in an affected and a fixed release."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrace.device.scripts import WrongUse
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags

if TYPE_CHECKING:
    from streamrace.scenarios.catalogue.entry import Entry
    from streamrace.studies.table import Table


@click.command()
@click.option("--list", "listed", is_flag=True, help="List the catalogue, and run nothing.")
@click.option("--ci", is_flag=True, help="Only the dozen entries that test each change.")
@click.option("--torch/--no-torch", default=False, help="Also entries that need another torch.")
@click.option("--library", multiple=True, metavar="NAME", help="Only this library: deepspeed, pytorch, megatron.")
@click.option("--programs", type=flags.PATH, help="A folder with your own entries. [default: the catalogue's]")
@flags.workers()
@flags.folder("folder for the table", "catalogue", replaces="an earlier one")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def catalogue(
    listed: bool,
    ci: bool,
    torch: bool,
    library: tuple[str, ...],
    programs: Path | None,
    workers: int | None,
    name: str,
    runs: Path,
    overwrite: bool,
    ids: tuple[str, ...],
) -> None:
    """Run the programs of known stream bugs (ID, or all), each with the affected and the fixed release.

    Both releases are unmodified, and installed into the cache when first needed. Writes a table, catalogue.json and
    a report. Exit status: 0 all results are as the entries say, 1 a result is not. The programs, with the known facts
    of each bug, are in scenarios/catalogue/.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from streamrace.device.extras import installed
    from streamrace.reports.data.catalogue import CatalogueFile, EntryRow
    from streamrace.reports.pages.catalogue_page import judged
    from streamrace.reports.screen import catalogue as screen
    from streamrace.repro.sessions import catalogue_run, folders, staging, studied
    from streamrace.scenarios.catalogue import entry as entries
    from streamrace.studies.process_pool import cores

    console = Terminal()
    all_entries = entries.entries(programs or entries.PROGRAMS)
    chosen = entries.named(ids, all_entries) if ids else all_entries
    chosen = [entry for entry in chosen if (not library or entry.library in library) and (entry.ci or not ci)]
    if not chosen:
        libraries = ", ".join(sorted({entry.library for entry in all_entries}))
        raise WrongUse(f"nothing is left to run: there are entries of {libraries}")
    if listed:
        console.print(_list(chosen))
        return
    aside = [] if torch or ids else [entry for entry in chosen if entry.other_torch]
    chosen = [entry for entry in chosen if entry not in aside]
    began = time.perf_counter()
    folder = folders.marked(
        runs / name,
        "entries.txt",
        lambda file: file.write_text("\n".join(entry.id for entry in chosen)),
        overwrite=overwrite,
    )
    rows: dict[str, EntryRow] = {}
    count = min(workers or cores(), len(chosen))
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("catalogue", total=len(chosen))
        for row in catalogue_run.run(
            chosen, folder, workers=count, began=lambda entry: progress.update(task, description=entry.id)
        ):
            rows[row.id] = row
            progress.advance(task)
            console.print(f"{row.id:<24} {screen.outcome(row)}", highlight=False, soft_wrap=True)
    results = [rows[entry.id] for entry in chosen]
    catalogue_run.forget_traces(folder)
    CatalogueFile(versions=installed("streamrace", "torch", "deepspeed"), entries=results).write(folder)
    folder = staging.commit(folder)
    console.print(screen.table(results))
    studied.report(console, folder, "catalogue", more=ids, shown=False)
    if aside:
        console.print(
            f"Left out, as they need another torch (--torch): {', '.join(entry.id for entry in aside)}", highlight=False
        )
    took = time.perf_counter() - began
    console.print(f"Files: {folder}/{CatalogueFile.NAME} ({took:.0f} s)", highlight=False, soft_wrap=True)
    console.print(judged(results)[2], highlight=False)
    if any(row.differs for row in results):
        raise SystemExit(1)


def _list(chosen: Sequence[Entry]) -> Table:
    from streamrace.studies.table import Cell, Table

    rows = [
        [
            Cell(entry.id, "", entry.library),
            Cell(entry.kind, "", "in CI" if entry.ci else ""),
            f"{entry.affected} -> {entry.fixed}",
            entry.title,
        ]
        for entry in chosen
    ]
    return Table("The catalogue", ["id", "kind", "affected -> fixed", "bug"], rows)
