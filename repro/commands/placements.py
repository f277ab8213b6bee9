"""Implements ``placements``: compares places for the synchronisation behind the secondary copy, and stock's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.frames import fixes as chosen_fixes
from streamrace.repro.commands.frames import numbers, words
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.studies import placements as study

_MICRO_BATCHES = "; ".join(
    f"{count}{f' of {model}' if at else ''}" for at, (model, count) in enumerate(study.MICRO_BATCHES.items())
)


@click.command(cls=Sections)
@click.option("--models", help="Full-size models, with commas. [default: llama-2-7b; llama-2-70b on one network]")
@click.option("--networks", help="Gbit/s between nodes, with commas. [default: 12.5,100,400; 100 for llama-2-70b]")
@click.option("--fixes", help="Only these fixes, with commas. [default: all]")
@click.option("--only", type=click.Choice(["fixes", "sites"]), help="Only the fixes, or only stock's own sites.")
@flags.workers(default=2)
@flags.folder("folder that takes the results", "placements")
@job_options("fix", "model", "network", usual={**study.JOB, "micro_batch": _MICRO_BATCHES})
def placements(
    models: str | None,
    networks: str | None,
    fixes: str | None,
    only: str | None,
    workers: int,
    name: str,
    runs: Path,
    **values: Any,
) -> None:
    """Dry-run every place where the synchronisation could stand; then take each of stock DeepSpeed's away alone.

    The job: 8 nodes of 8 GPUs, hpZ 8, checkpointing, micro-batch 16 (4 for llama-2-70b), 2 steps, unless options say
    otherwise. Stock's own are judged in a small live run of 4 ranks. Ends with a report. A folder of the same name is
    replaced.
    """
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.sessions import folders, staging, studied
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.job import Job, job
    from streamrace.studies import sites

    console = Terminal()
    todo = study.cases(
        None if models is None else words(models),
        None if networks is None else numbers("--networks", networks, float, what="Gbit/s above 0"),
        list(Fix) if fixes is None else chosen_fixes(fixes),
    )
    for case in todo:
        study.job_of(case, **chosen(values, Job))  # refuse mistakes before any run
    folder = folders.marked(runs / name, "cases.txt", lambda file: _note(file, todo), overwrite=True)

    def progress(text: str) -> None:
        console.print(f"  {text}", highlight=False)

    began = time.monotonic()
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    if only != "sites":
        console.print(f"{len(todo)} dry runs, {workers} at once", highlight=False)
        frame = study.study(todo, folder / "runs", progress, workers=workers, **chosen(values, Job))
        frame.to_csv(folder / "placements.csv", index=False)
        study.cheapest(frame).to_csv(folder / "cheapest.csv", index=False)
    if only != "fixes":
        console.print("stock DeepSpeed's own synchronisations: a live run without each", highlight=False)
        found = sites.study(folder / "sites", progress)
        found.to_csv(folder / "sites.csv", index=False)
    folder = staging.commit(folder)
    options = {**study.JOB, "hardware": job().hardware, **chosen(values, Job)}
    profile = job(**options).profile()
    console.print(f"Took {time.monotonic() - began:.0f} s. Files: {folder}/*.csv", highlight=False)
    studied.report(console, folder, "placements", options=options, hardware=f"{profile.name}: {profile.description}")


def _note(file: Path, todo: Sequence[Any]) -> None:
    file.write_text("".join(f"{case.model} {case.gbits:g} {case.fix}\n" for case in todo), encoding="utf-8")
