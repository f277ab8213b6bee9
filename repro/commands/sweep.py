"""Implements ``sweep``: runs one model over networks and micro-batches."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import click

from streamrace.frameworks.deepspeed.releases import PINNED, installed
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.frames import numbers
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.repro.sessions.release import aside
from streamrace.scenarios.base import ScenarioError

_DECIDED = ("network", "micro_batch", "fix", "stage", "steps")  # decided by the sweep itself
_USUAL = {"nodes": 8, "hpz": 8, "checkpointing": True}
_TOLD = 0.01  # part of a step from which on the effect is reported
_NETWORKS, _MICRO_BATCHES = "1,3,6,12.5,25,50,100,200,400", "1,2,4,8,16,32"


@click.command(cls=Sections)
@job_options(*_DECIDED, usual=_USUAL)
@click.option("--networks", default=_NETWORKS, help=f"Gbit/s between nodes. [default: {_NETWORKS}]")
@click.option("--micro-batches", default=_MICRO_BATCHES, help=f"Sequences per GPU. [default: {_MICRO_BATCHES}]")
@flags.workers()
@flags.folder("folder that takes table and pictures", "sweep", replaces="a sweep")
def sweep(
    networks: str, micro_batches: str, workers: int | None, name: str, runs: Path, overwrite: bool, **values: Any
) -> None:
    """Where the race shows and where hpZ pays: hpZ with each fix, and ZeRO-3, over networks and micro-batches.

    Ends with a table (sweep.csv) and a report, with the phase diagram of the race and throughput against bandwidth.
    With --deepspeed that release, as it was released, stands beside the pinned one.
    """
    import pandas as pd

    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging, studied
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.job import Job, job
    from streamrace.studies import sweep as study

    began = time.perf_counter()
    console = Terminal()
    release = values.pop("deepspeed") or PINNED
    options = {**_USUAL, **chosen(values, Job)}
    part = release != PINNED and installed() == release  # this process was started by the call of aside below
    made = job(**options, **({"deepspeed": release} if part else {}))
    if made.hpz == 1:
        raise ScenarioError("--hpz 1 switches hpZ off, and the sweep compares it with ZeRO-3: choose a group size")
    made.check()
    profile = made.profile()
    wanted, batches = numbers("--networks", networks, float), numbers("--micro-batches", micro_batches, int)
    folder = folders.of_job(runs / name, made, overwrite=overwrite)
    title = f"{made.model}, {made.nodes} x {made.gpus} GPUs, hpZ {made.hpz}, accumulation {made.accumulation}"
    with doing(console, f"{title}: {len(wanted)} networks, {len(batches)} micro-batches"):
        rehearsal.preload()
    with counting(console) as progress:
        frame = study.sweep(made, folder, networks=wanted, micro_batches=batches, workers=workers, progress=progress)
    if not part and release != PINNED:
        words = shlex.split(studied.command(click.get_current_context()))[3:]
        if workers:
            words += ["--workers", str(workers)]
        aside(release, [*words, "--runs", str(folder), "--name", release])
        other = pd.read_csv(folder / release / "sweep.csv")
        names = [*frame.configuration, *other.configuration]
        frame = study.ordered(pd.concat([frame, other], ignore_index=True), names)
    frame.to_csv(folder / "sweep.csv", index=False)
    folder = staging.commit(folder)
    if part:
        return
    if study.asked(frame) >= _TOLD:
        console.print(
            f"In these runs no query of an event is answered, so a step may be up to {study.asked(frame):.1%} longer "
            "than in 'streamrace dry', and more pairs unordered: the column asking_us says it of each row.",
            highlight=False,
        )
    console.print(f"Files: {folder}/sweep.csv ({time.perf_counter() - began:.0f} s)", highlight=False)
    studied.report(console, folder, "sweep", options=made.model_dump(mode="json"), hardware=profile.description)
