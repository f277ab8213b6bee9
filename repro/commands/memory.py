"""Implements ``memory``: measures the cost of the secondary copy, by model and group size."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.reports.table import Cell, Column, Table
from streamrace.repro.commands import flags
from streamrace.repro.commands.frames import numbers, words
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.studies import memory as study

if TYPE_CHECKING:
    import pandas as pd

# Decided by the study itself, or irrelevant to memory.
_DECIDED = ("model", "hpz", "qwz", "stage", "steps", "config", "precision", "hardware", "network", "fix", "slow")


@click.command(cls=Sections)
@job_options(*_DECIDED, usual=study.JOB)
@click.option("--models", default="", help="Full-size models. [default: Llama 7B to 70B, and Falcon-40B]")
@click.option("--groups", default="", help="hpZ group sizes. [default: 8; for 7B and 70B 2, 4 and 16 as well]")
@click.option("--quantized/--no-quantized", default=None, help="With qwZ, or without. [default: both]")
@click.option("--trackers", is_flag=True, help="Instead: dry runs' peak beside what torch's own memory tracker counts.")
@flags.workers()
@flags.folder("folder that takes table and picture", "memory", replaces="a study")
def memory(
    models: str,
    groups: str,
    quantized: bool | None,
    trackers: bool,
    workers: int | None,
    name: str,
    runs: Path,
    overwrite: bool,
    **values: Any,
) -> None:
    """What hpZ's secondary copy costs in memory: measured on dry runs, beside 2 bytes x parameters / group size.

    64 GPUs, gradient checkpointing and two steps unless told otherwise. Ends with tables (memory.csv, limits.csv) and
    a picture.
    """
    from streamrace.reports.pictures import memory as memory_chart
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.job import Job, job

    began = time.perf_counter()
    console = Terminal()
    if trackers:
        if models or groups or quantized is not None or chosen(values, Job):
            raise click.UsageError("--trackers has cases of its own: leave the other options out.")
        _trackers(console, runs / name, workers, overwrite=overwrite)
        return
    options = {**study.JOB, **chosen(values, Job)}
    sizes = numbers("--groups", groups, int, above=1, what="group sizes of 2 or more") if groups else ()
    todo = study.cases(words(models), sizes, qwz=quantized, ranks=job(**options).ranks)
    jobs = [job(**options, model=case.model, hpz=case.group, qwz=case.qwz) for case in todo]  # refuse it before any run
    folder = folders.of_job(runs / name, jobs[0], overwrite=overwrite)
    of = jobs[0]
    title = f"{of.nodes} x {of.gpus} GPUs, micro-batch {of.micro_batch} of {of.sequence} tokens" + (
        ", gradient checkpointing" if of.checkpointing else ""
    )
    with doing(console, f"{title}: {len(todo)} dry runs"):
        rehearsal.preload()
    with counting(console) as progress:
        frame = study.study(todo, folder, progress, workers=workers, **options)
    ends = study.limits(frame)
    frame.to_csv(folder / "memory.csv", index=False)
    ends.to_csv(folder / "limits.csv", index=False)
    group = study.GROUP if (frame.group == study.GROUP).any() else int(frame.group.max())
    memory_chart.draw(frame, folder / "memory.png", group=group, title=f"Memory on each GPU at its peak: {title}")
    folder = staging.commit(folder)
    _show(console, frame)
    _show_limits(console, ends)
    console.print(
        f"Files: {folder}/memory.csv, limits.csv, memory.png ({time.perf_counter() - began:.0f} s)", highlight=False
    )


def _trackers(console: Console, place: Path, workers: int | None, *, overwrite: bool) -> None:
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging
    from streamrace.studies import trackers

    folder = folders.make(place, {"study": "trackers"}, overwrite=overwrite)
    with counting(console) as progress:
        frame = trackers.study(trackers.cases(), folder, progress, workers=workers)
    frame.to_csv(folder / "trackers.csv", index=False)
    folder = staging.commit(folder)
    rows = [
        [
            row["model"],
            row["layers"] or "all",
            ", ".join(
                [
                    row["precision"],
                    row["attention"],
                    *(["checkpointing"] if row["checkpointing"] else []),
                    *([f"FSDP2 on {row['ranks']}"] if row["ranks"] > 1 else []),
                ]
            ),
            row["ours"] / trackers.GIB,
            row["theirs"] / trackers.GIB,
            "0" if not row["error"] else f"{row['error']:+.1e}",
        ]
        for row in frame.to_dict("records")
    ]
    figures = [Column("ours", ".4f"), Column("tracker's", ".4f"), Column("error", right=True)]
    console.print(Table("The peak of a plain step, GiB", ["model", Column("layers", right=True), "", *figures], rows))
    console.print(f"Files: {folder}/trackers.csv", highlight=False)


def _show(console: Console, frame: pd.DataFrame) -> None:
    rows = []
    before = ""
    for row in frame.to_dict("records"):
        first = row["model"] != before
        measured = [row["secondary"] / study.GIB, row["formula"] / study.GIB, _share(row["error"])]
        fitting = ", ".join(str(card) for card in study.CARDS if row["peak"] <= card * study.GIB)
        rows.append(
            [
                row["model"] if first else "",
                row["parameters"] / 1e9 if first else None,
                study.configuration(row["group"], row["qwz"]),
                *(measured if row["group"] > 1 else (None, None, None)),
                row["peak"] / study.GIB,
                fitting or Cell("none", "bad"),
            ]
        )
        before = row["model"]
    numbers = [Column("copy", ".3f"), Column("2P/group", ".3f"), Column("error", right=True), Column("peak", ".2f")]
    columns = ["model", Column("billion", ".2f"), "", *numbers, "fits, GB"]
    console.print(Table("The secondary copy, GiB on each GPU", columns, rows))


def _show_limits(console: Console, ends: pd.DataFrame) -> None:
    if ends.empty:
        return
    rows = [
        [
            f"{row['card']} GB",
            study.configuration(row["group"], row["qwz"]),
            row["fits"] or "-",
            row["fails"] or "-",
            f"{row['parameters'] / 1e9:.0f} billion{'*' if row['beyond'] else ''}",
        ]
        for row in ends.sort_values(["card", "group", "qwz"]).to_dict("records")
    ]
    columns = ["card", "", "largest that fits", "smallest that does not", "from"]
    console.print(Table("From which size on it no longer fits", columns, rows))
    if ends.beyond.any():
        console.print("* beyond what was measured: a straight line", highlight=False)


def _share(error: float) -> str:
    return "0" if error == 0 else f"{100 * error:+.2g} %"
