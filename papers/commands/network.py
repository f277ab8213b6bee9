"""``network``: compares published measurements of collectives with the model of the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.studies.table import Cell, Column, Table

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@flags.folder("folder for the tables", "network", replaces="a study")
def network(name: str, runs: Path, overwrite: bool) -> None:
    """Compare reported results of nccl-tests on described machines with the model of the network.

    Writes tables (network.csv, rings.csv): theirs, ours, the error, and the reason of a large error. Nothing is fitted.
    """
    from papers.studies import network as study
    from streamrace.repro.sessions import folders, staging

    console = Terminal()
    folder = folders.make(runs / name, {"study": "network"}, overwrite=overwrite)
    frame, rings = study.study(), study.rings()
    frame.to_csv(folder / "network.csv", index=False)
    rings.to_csv(folder / "rings.csv", index=False)
    folder = staging.commit(folder)
    _show(console, frame)
    _show_rings(console, rings)
    console.print(f"Files: {folder}/network.csv, rings.csv", highlight=False)


def _show(console: Console, frame: pd.DataFrame) -> None:
    rows = []
    for row in frame.to_dict("records"):
        error = f"{100 * row['error']:+.0f} %"
        off = abs(row["error"]) > 0.25 and not row["why"]
        what = f"{row['collective'].replace('_', '-')}, {_size(row['bytes'])}"
        figures = [f"{row[which]:,.{0 if row[which] > 999 else 1}f}" for which in ("reported", "ours")]
        machine = Cell(row["machine"], below=row["why"])
        shown = Cell(error, "bad") if off else error
        rows.append([machine, Cell(what, below=row["way"]), *figures, row["unit"], shown, row["simai"]])
    numbers = [Column("theirs", right=True), Column("ours", right=True), "", Column("faster", right=True)]
    numbers.append(Column("SimAI", ".0f"))
    title = "Collectives, reported and predicted (below a machine: what of it the model does not have)"
    console.print(Table(title, ["machine", "collective", *numbers], rows))
    for what, those in (("all", frame), ("without a reason of their own", frame[frame.why == ""])):
        console.print(
            f"Mean absolute error, {len(those)} rows {what}: {100 * those.error.abs().mean():.0f} %", highlight=False
        )


def _show_rings(console: Console, rings: pd.DataFrame) -> None:
    rows = []
    for row in rings.to_dict("records"):
        needed = f"{row['needed_least']:.0f} to {row['needed_most']:.0f}"
        times = [row["nccl_ms"], row["ho_ms"], f"{100 * row['saved']:.0f} %"]
        rows.append([str(row["ranks"]), str(row["cards"]), *times, row["nccl_gbytes"], needed])
    numbers = [Column("NCCL's ring, ms", ".1f"), Column("HO-Ring, ms", ".1f"), Column("saved", right=True)]
    numbers += [Column("NCCL's, GB/s", ".1f"), Column("for 25 to 40 %", right=True)]
    title = "All-gather of 1 GB on the cluster of arXiv 2310.06003, which reports 25 to 40 % less"
    console.print(Table(title, [Column("GPUs", right=True), Column("cards", right=True), *numbers], rows))


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"
