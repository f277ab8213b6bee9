"""``sweep``: one model over networks and micro-batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from repro.commands import flags
from repro.commands.frames import numbers
from repro.commands.options import chosen, job_options
from scenarios.base import ScenarioError

_DECIDED = ("network", "micro_batch", "fix", "stage", "steps")  # by the sweep itself


@click.command()
@job_options(*_DECIDED)
@click.option("--networks", default="1,3,6,12.5,25,50,100,200,400", help="Gbit/s between nodes. [default: 1 to 400]")
@click.option("--micro-batches", default="1,2,4,8,16,32", help="Sequences per GPU. [default: 1 to 32]")
@flags.workers()
@flags.folder("folder that takes table and pictures", "sweep", replaces="a sweep")
def sweep(
    networks: str, micro_batches: str, workers: int | None, name: str, runs: Path, overwrite: bool, **values: Any
) -> None:
    """Where the race shows and where hpZ pays: hpZ with each fix, and ZeRO-3, over networks and micro-batches.

    Ends with a table (sweep.csv), pictures (the phase diagram of the race, throughput against bandwidth) and a report.
    """
    from reports.pictures import sweep as charts
    from reports.screen.terminal import doing
    from repro.commands.progress import counting
    from repro.sessions import folders, studied
    from scenarios import rehearsal
    from scenarios.job import Job, job
    from studies import sweep as study

    began = time.perf_counter()
    console = Console()
    options = {"nodes": 8, "hpz": 8, "checkpointing": True, **chosen(values, Job)}
    made = job(**options)
    if made.hpz == 1:
        raise ScenarioError("--hpz 1 switches hpZ off, and the sweep compares it with ZeRO-3: choose a group size")
    profile = made.profile()
    wanted, batches = numbers("--networks", networks, float), numbers("--micro-batches", micro_batches, int)
    folder = folders.of_job(runs / name, made, overwrite=overwrite)
    title = f"{made.model}, {made.nodes} x {made.gpus} GPUs, hpZ {made.hpz}, accumulation {made.accumulation}"
    with doing(console, f"{title}: {len(wanted)} networks, {len(batches)} micro-batches"):
        rehearsal.preload()
    with counting(console) as progress:
        frame = study.sweep(made, folder, networks=wanted, micro_batches=batches, workers=workers, progress=progress)
    frame.to_csv(folder / "sweep.csv", index=False)
    charts.phase_diagram(frame, "hpZ none", f"Does the race show? {title}, no fix", folder / "phase-diagram.png")
    charts.throughput(frame, title, folder / "throughput.png")
    _show(console, frame)
    console.print(
        f"Files: {folder}/sweep.csv, phase-diagram.png, throughput.png ({time.perf_counter() - began:.0f} s)",
        highlight=False,
    )
    studied.report(console, folder, "sweep", options=made.model_dump(mode="json"), hardware=profile.description)


def _show(console: Console, frame: Any) -> None:
    from studies.sweep import PAYS, gain, stops_paying

    races = frame[frame.configuration == "hpZ none"].set_index(["micro_batch", "network"])
    gains, ends = gain(frame), stops_paying(frame)
    networks = list(gains.columns)
    table = Table(title="How many times as fast as ZeRO-3 hpZ is, by Gbit/s between nodes", title_justify="left")
    table.add_column("micro-batch", justify="right")
    for network in networks:
        table.add_column(f"{network:g}", justify="right")
    table.add_column(f"< {100 * (PAYS - 1):.0f} % from", justify="right")
    for batch in gains.index:
        cells = []
        for network in networks:
            one = races.loc[(batch, network)]
            colour = "red" if one.pairs and one.shown == one.pairs else "yellow" if one.shown else "green"
            mark = {"red": "!", "yellow": "?", "green": ""}[colour]
            cells.append(f"[{colour}]{gains.loc[batch, network]:.2f}{mark}[/]")
        end = ends[batch]
        table.add_row(str(batch), *cells, f"{end:.0f}" if end == end else "-")
    console.print(table)
    console.print("Without a fix the race shows there: ! every pair is reversed, ? some are.", highlight=False)
