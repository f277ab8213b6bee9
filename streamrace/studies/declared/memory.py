"""Declares the study ``memory``: the cost of the secondary copy in memory, by model and group size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pandas as pd

from streamrace.scenarios.job import job
from streamrace.studies import memory as study
from streamrace.studies import trackers
from streamrace.studies.lists import numbers, words
from streamrace.studies.memory import CARDS, GIB, configuration
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan, StudyRun
from streamrace.studies.table import Cell, Column, Table, each

_SHOWN = ("nodes", "gpus", "micro_batch", "sequence", "accumulation", "checkpointing")


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    models, groups, quantized = own["models"], own["groups"], own["quantized"]
    if own["trackers"]:
        if options or models or groups or quantized is not None:
            raise click.UsageError("--trackers has cases of its own: leave the other options out.")
        return StudyPlan(_tracked, mark=("check.json", '{"asked": {"study": "trackers"}}\n'))
    sizes = numbers("--groups", groups, int, above=1, what="group sizes of 2 or more") if groups else ()
    todo = study.cases(words(models or ""), sizes, qwz=quantized, ranks=job(**options).ranks)
    jobs = [job(**options, model=case.model, hpz=case.group, qwz=case.qwz) for case in todo]  # refuse it before any run

    def measure(run: StudyRun) -> Frames:
        with run.counting() as progress:
            frame = study.study(todo, run.folder, progress, workers=run.workers, **options)
        return {"memory": frame, "limits": study.limits(frame)}

    of = jobs[0]
    title = f"{of.nodes} x {of.gpus} GPUs, micro-batch {of.micro_batch} of {of.sequence} tokens" + (
        ", gradient checkpointing" if of.checkpointing else ""
    )
    return StudyPlan.of(of, measure, f"{title}: {len(todo)} dry runs")


def _tracked(run: StudyRun) -> Frames:
    with run.counting() as progress:
        return {"trackers": trackers.study(trackers.cases(), run.folder, progress, workers=run.workers)}


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    if (frame := frames.get("trackers")) is not None:
        worst = frame.error.abs().max()
        return Conclusion(
            "The peak of a plain step, and the count of torch's own memory tracker",
            f"{worst:.1%} apart at most",
            "good" if worst <= 0.01 else "warn",
            f"The peak of a dry run is at most {worst:.1e} of it apart from the count of torch's own tracker, in "
            f"{len(frame)} cases.",
        )
    frame = frames["memory"]
    copies = frame[frame.group > 1]
    worst = copies.error.abs().max() if len(copies) else 0.0
    largest = copies.iloc[int(copies.secondary.to_numpy().argmax())] if len(copies) else None
    models = [f"{row.model} ({row.parameters / 1e9:.1f} billion)" for row in each(frame.drop_duplicates("model"))]
    near = f"to {100 * worst:.2g} %" if worst else "to the byte"
    sentence = f"In {len(copies)} dry runs with hpZ the secondary copy is 2 bytes x parameters / group size, {near}"
    if largest is not None:
        sentence += f"; the largest takes {largest.secondary / GIB:.2f} GiB of each GPU ({largest.model}, "
        sentence += f"{configuration(largest.group, largest.qwz)})"
    return Conclusion(
        "What the secondary copy costs in memory",
        f"as the formula says, {near}",
        "good" if worst <= 0.01 else "warn",
        f"{sentence}.",
        [
            Fact("job", ", ".join(f"{name} {options[name]}" for name in _SHOWN if name in options)),
            Fact("models", ", ".join(models)),
            Fact("fits", f"a GPU of {' or '.join(map(str, CARDS))} GiB, by torch's peak"),
        ],
    )


def _tables(frames: Frames) -> list[Table]:
    return [_tracked_peaks(frames["trackers"])] if "trackers" in frames else [_copies(frames), _ends(frames)]


def _copies(frames: Frames) -> Table:
    rows: list[list[Any]] = []
    before = ""
    for row in each(frames["memory"]):
        error = f"{100 * row.error:+.2g} %" if row.error else "0"
        rows.append(
            [
                *((row.model, row.parameters / 1e9) if row.model != before else ("", None)),
                configuration(row.group, row.qwz),
                *((row.secondary / GIB, row.formula / GIB, error) if row.group > 1 else (None, None, None)),
                row.peak / GIB,
                ", ".join(str(card) for card in CARDS if row.peak <= card * GIB) or Cell("none", "bad"),
            ]
        )
        before = row.model
    numbers = [Column("copy", ".3f"), Column("2P/group", ".3f"), Column("error", right=True), Column("peak", ".2f")]
    columns = ["model", Column("billion", ".2f"), "configuration", *numbers, "fits, GiB"]
    return Table("The secondary copy, GiB on each GPU", columns, rows)


def _ends(frames: Frames) -> Table:
    ends = study.limits(frames["memory"]).sort_values(["card", "group", "qwz"])
    rows = [
        [
            f"{row.card} GiB", configuration(row.group, row.qwz), row.fits or "-", row.fails or "-",
            f"{row.parameters / 1e9:.0f} billion{'*' if row.beyond else ''}",
        ]
        for row in each(ends)
    ]  # fmt: skip
    columns = ["card", "configuration", "largest that fits", "smallest that does not", "from"]
    note = "* beyond what was measured: a straight line" if ends.beyond.any() else ""
    return Table("From which size on it no longer fits", columns, rows, note)


def _tracked_peaks(frame: pd.DataFrame) -> Table:
    rows = [
        [
            row.model,
            row.layers or "all",
            ", ".join(
                [row.precision, row.attention]
                + ["checkpointing"] * row.checkpointing
                + [f"FSDP2 on {row.ranks}"] * (row.ranks > 1)
            ),
            row.ours / GIB,
            row.theirs / GIB,
            f"{row.error:+.1e}" if row.error else "0",
        ]
        for row in each(frame)
    ]
    figures = [Column("ours", ".4f"), Column("tracker's", ".4f"), Column("error", right=True)]
    columns = ["model", Column("layers", right=True), "step", *figures]
    return Table("The peak of a plain step, GiB", columns, rows)


STUDY = Study(
    question="What does hpZ's secondary copy cost in memory, by model and group size?",
    text="""Measure the memory of hpZ's secondary copy on dry runs, and compare it with its formula.

    Writes tables (memory.csv, limits.csv) and a report.
    """,
    columns={"memory": study.COLUMNS, "trackers": trackers.COLUMNS},
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    options=(
        click.option("--models", help="Full-size models. [default: Llama 7B to 70B, and Falcon-40B]"),
        click.option("--groups", help="hpZ group sizes. [default: 8; for 7B and 70B 2, 4 and 16 as well]"),
        click.option("--quantized/--no-quantized", default=None, help="With qwZ, or without. [default: both]"),
        click.option(
            "--trackers", is_flag=True, help="Instead compare dry runs' peak with torch's own memory tracker."
        ),
    ),
    decided=(
        "model", "hpz", "qwz", "stage", "steps", "config", "sharding", "group", "rings", "fix", "slow",
    ),
    takes="table and picture",
    replaces="a study",
    words=("hpZ", "secondary partition"),
)  # fmt: skip
