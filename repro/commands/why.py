"""Implements ``why``: finds the assumption that decides whether hpZ's race shows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from streamrace.frameworks.deepspeed.releases import PINNED, environment, installed
from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.repro.sessions.release import aside
from streamrace.scenarios.base import ScenarioError
from streamrace.studies import why as study

_DECIDED = (
    "network", "fix", "graft", "stage", "steps", "config", "qwz", "qgz", "sharding", "group", "rings", "loop", "slow",
    "reentrant", "checkpointing", "accumulation", "overlap_comm", "precision", "frozen",
)  # fmt: skip


@click.command(cls=Sections)
@job_options(*_DECIDED, "deepspeed", usual=study.SETTING)
@click.option(
    "--releases", help="DeepSpeed releases, with commas. [default: 0.13.2, 0.13.4, 0.13.5 and the pinned one]"
)
@click.option("--only", default="", help="Only these assumptions, with commas: network cards, loop. [default: all]")
@click.option("--live/--no-live", default=True, help="Run transformers' Trainer on a small model too. [default: live]")
@flags.workers()
@flags.folder("folder that takes the table", "why", replaces="an earlier one")
def why(
    releases: str | None,
    only: str,
    live: bool,
    workers: int | None,
    name: str,
    runs: Path,
    overwrite: bool,
    **values: Any,
) -> None:
    """Change one assumption at a time of the setting in which users met the race: which one decides whether it shows?

    Ends with a table (why.csv) and a report. Beside it a small model is trained by transformers' Trainer, on simulated
    GPUs, under the affected release and the pinned one: what it prints as the loss (losses.csv).
    """
    import pandas as pd

    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.frames import among
    from streamrace.repro.commands.frames import words as words_of
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging, studied
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.job import Job
    from streamrace.studies import trainer

    began = time.perf_counter()
    console = Terminal()
    wanted = list(study.RELEASES) if releases is None else among("--releases", releases, study.RELEASES)
    options = chosen(values, Job)
    here = installed()
    part = here != PINNED and wanted == [here]  # this process was started by the call of aside below
    if not part and study.AFFECTED not in wanted:
        raise ScenarioError(f"--releases leaves out {study.AFFECTED}, with which the others are compared: name it too")
    made = study.reported(**options)
    folder = folders.of_job(runs / name, made, overwrite=overwrite)
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    frames = []
    for release in wanted:
        if release == here:
            with counting(console) as progress:
                frames.append(
                    study.why([release], folder, only=words_of(only), workers=workers, progress=progress, **options)
                )
            continue
        words = [
            "why",
            *_said(options),
            "--only",
            only,
            "--releases",
            release,
            "--runs",
            str(folder),
            "--name",
            release,
        ]
        aside(release, [*words, *(["--workers", str(workers)] if workers else [])])
        frames.append(pd.read_csv(folder / release / "why.csv", keep_default_na=False, na_values=[""]))
    frame = frames[0] if part else study.judged(pd.concat(frames, ignore_index=True))
    frame.to_csv(folder / "why.csv", index=False)
    if part:
        return
    if live:
        with doing(console, "transformers' Trainer on a small model"):
            trained = [trainer.losses(one, environment(one) if one != here else os.environ)
                       for one in (study.AFFECTED, PINNED) if one in wanted]  # fmt: skip
        losses = pd.concat(trained, ignore_index=True)
        losses.to_csv(folder / "losses.csv", index=False)
        for one, rows in losses.groupby("release"):
            console.print(f"  Trainer, DeepSpeed {one}: loss {', '.join(f'{loss:.4f}' for loss in rows.loss)}")
    folder = staging.commit(folder)
    console.print(f"Files: {folder}/why.csv ({time.perf_counter() - began:.0f} s)", highlight=False)
    studied.report(console, folder, "why", options=made.model_dump(mode="json"), hardware=made.profile().description)


def _said(options: dict[str, Any]) -> list[str]:
    """Return the same options as words of another command line."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
