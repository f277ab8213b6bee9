"""``paper``: compares the papers' claims with our results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.lists import among, numbers
from streamrace.studies.table import Column, Table

PARTS = ("rows", "gains", "losses", "quantization")


@click.command()
@click.option("--parts", default=",".join(PARTS), help=f"What to compare, with commas. [default: {','.join(PARTS)}]")
@click.option("--clusters", default="", help="Rows: only of these, zeropp, pr4906, ... [default: all]")
@click.option("--models", default="", help="Only these models, with commas: gpt-18b, llama-2-7b, ... [default: all]")
@click.option("--micro-batches", default="1,4,16", help="Sequences per GPU, of the gains. [default: 1,4,16]")
@click.option("--accumulations", default="1,2,3,4,8", help="Accumulation steps, of the gains. [default: 1,2,3,4,8]")
@flags.workers()
@flags.folder("folder for the tables", "paper", replaces="tables")
def paper(
    parts: str, clusters: str, models: str, micro_batches: str, accumulations: str, workers: int | None, name: str,
    runs: Path, overwrite: bool,
) -> None:  # fmt: skip
    """What the papers and threads report, beside what dry runs and a live run give, each with its relative error.

    Rows: every reported step time, from the hardware's facts alone and with one figure for each cluster that its other
    rows give; and which unknown would explain what is still off. Gains: hpZ against ZeRO-3 on 12.5 Gbit/s.
    """
    from papers.screen import paper as report
    from papers.studies import paper as study
    from papers.studies.published_figures import published
    from papers.studies.quantization import quantization
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.job import job

    began = time.perf_counter()
    console = Terminal()
    wanted = among("--parts", parts, PARTS)
    times = [row for row in published() if row.is_time]
    at = among("--clusters", clusters, list(dict.fromkeys(row.cluster for row in times))) if clusters else []
    known = list(dict.fromkeys(row.model for row in times)) + list(study.MODELS)
    of_models = among("--models", models, list(dict.fromkeys(known))) if models else known
    batches, steps = numbers("--micro-batches", micro_batches, int), numbers("--accumulations", accumulations, int)
    chosen = [row for row in times if row.model in of_models and (not at or row.cluster in at)]
    gaining = [one for one in study.MODELS if one in of_models]
    if "rows" in wanted and not chosen:
        raise ScenarioError(f"no step time is reported of {models} on {clusters}: choose others, or leave rows out")
    if "gains" in wanted and not gaining:
        wanted.remove("gains")
    folder = folders.marked(
        runs / name, "paper.txt", lambda file: file.write_text(f"{parts}\n", encoding="utf-8"), overwrite=overwrite
    )
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    frames: dict[str, Any] = {}
    if "rows" in wanted:
        with counting(console) as progress:
            timed = study.timed_rows(chosen, folder, workers=workers, progress=progress)
        frames |= {"rows": study.rows(timed), "unknowns": study.candidates(timed)}
        report.show_rows(console, frames["rows"])
        report.show_candidates(console, frames["unknowns"], frames["rows"])
    if "gains" in wanted:
        with counting(console) as progress:
            frames["gains"] = study.gains(
                folder, models=gaining, micro_batches=batches, accumulations=steps, workers=workers, progress=progress
            )
        report.show_gains(console, frames["gains"])
    if "losses" in wanted:
        with doing(console, "live: the loss of each step with hpZ and without"):
            frames["losses"] = study.losses(folder)
        _losses(console, frames["losses"])
    if "quantization" in wanted:
        made = job(model="llama-2-7b", nodes=8, hpz=8, micro_batch=4, checkpointing=True)
        with counting(console) as progress:
            frames["quantization"] = quantization(made, folder, workers=workers, progress=progress)
        _quantization(console, frames["quantization"])
    for part, frame in frames.items():
        frame.to_csv(folder / f"{part}.csv", index=False)
    files = ", ".join(f"{part}.csv" for part in frames)
    folder = staging.commit(folder)
    console.print(f"Files: {folder}/: {files} ({time.perf_counter() - began:.0f} s)", highlight=False)


def _losses(console: Console, frame: Any) -> None:
    found = [[row.step, row.zero3, row.hpz, "equal" if row.equal else "differs"] for row in frame.itertuples()]
    columns = [Column("step", "d"), Column("ZeRO-3", ".6f"), Column("hpZ", ".6f"), ""]
    console.print(Table("Loss per step, live, hpZ with its synchronisation", columns, found))


def _quantization(console: Console, frame: Any) -> None:
    title = "hpZ x qwZ x qgZ: Llama-2-7B, 64 A100, 12.5 Gbit/s, micro-batch 4 (dry); the loss of a small model (live)"
    found = []
    for row in frame.itertuples():
        words = [word for word, on in (("hpZ", row.hpz), ("qwZ", row.qwz), ("qgZ", row.qgz)) if on]
        sizes = (row.between_gib, row.within_gib, row.secondary_gib, row.peak_gib)
        change = f"{row.loss_change:.5f}" if row.loss_change else "nothing"
        found.append([" ".join(words) or "ZeRO-3", row.step_s, *sizes, change, row.races])
    sized = [Column(name, "{:.2f} GiB") for name in ("between nodes", "within", "secondary", "peak")]
    columns = ["", Column("s a step", ".2f"), *sized, Column("loss changes by", right=True), Column("races", "d")]
    console.print(Table(title, columns, found))
