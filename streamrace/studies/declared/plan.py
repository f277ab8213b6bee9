"""Declares the study ``plan``: which way to shard a planned job fits, and which is the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import click
import pandas as pd

from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.full_size import ModelError, subject
from streamrace.scenarios.job import MEASURED_HOST, machine, predicted
from streamrace.studies import plan as study
from streamrace.studies import predicted_steps
from streamrace.studies.lists import words
from streamrace.studies.plan import COMPARED
from streamrace.studies.predicted_steps import Gain
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan, StudyRun
from streamrace.studies.table import Cell, Column, Table, each
from streamrace.trace import wording


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    base = predicted(**options)
    options = {**options, "host": base.host}
    base.check()
    if ":" not in base.model:  # a user's own function runs in the rank, not here
        try:
            subject(base.model)
        except ModelError as error:
            raise ScenarioError(str(error)) from None
    capacity = own["gpu_memory"]
    if capacity is not None and not 0 < capacity < math.inf:
        raise ScenarioError(f"--gpu-memory takes a number above 0, not {capacity:g}")
    todo = study.ways(words(own["compare"]), base)

    def measure(run: StudyRun) -> Frames:
        with run.counting() as progress:
            frame = study.study(
                todo, base, options, run.folder / "runs", progress, workers=run.workers, gpu_memory=capacity
            )
        return {"plan": frame}

    return StudyPlan.of(base, measure, f"{_title(base.model_dump())}: {wording.count(len(todo), 'dry run')}")


def _title(options: Mapping[str, Any]) -> str:
    """Describe the job of ``options``: as they are, or as texts."""
    get = {name: str(value) for name, value in options.items() if value is not None and value != "null"}.get
    on = machine(get("hardware", ""), float(get("network", "")) if get("network") else None, get("host"))
    batch = f"micro-batch {get('micro_batch')}, accumulation {get('accumulation')}"
    return (
        f"{get('model')}, {get('nodes')} nodes of {get('gpus')} GPUs ({on}), "
        f"{'batches as ' + PurePath(get('config', '')).name + ' says' if get('config') else batch}, sequences of "
        f"{get('sequence')} tokens" + (", gradient checkpointing" if get("checkpointing") in ("True", "true") else "")
    )


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    frame = frames["plan"]
    ran, fitting = frame[frame.reason == ""], frame[frame.fits]
    title = _title(options)
    facts = [
        Fact("job", title),
        Fact("compared", ", ".join(frame.strategy)),
        predicted_steps.errors(),
        Fact("memory", "torch's peak on a GPU; CUDA's context and NCCL's buffers need some GiB more"),
    ]
    if ran.empty:
        return Conclusion(title, "nothing runs", "bad", "None of these ways to shard can run.", facts)
    if fitting.empty:
        return Conclusion(title, "nothing fits", "bad", _nothing_fits(ran, options), facts)
    best, others = fitting.iloc[0], fitting.iloc[1:]
    sentence = (
        f"Take {best.strategy}: {predicted_steps.speed(best)}, {best.gpu_gib - best.peak_gib:.1f} of "
        f"{best.gpu_gib:g} GiB to spare. {_against(best.step_s, others)}."
    )
    if racing := best.races > 0:
        sentence += f" It has {wording.count(int(best.races), 'race')}, which 'streamrace dry' shows."
    return Conclusion(title, f"{best.strategy} is the fastest", "warn" if racing else "good", sentence, facts)


def _against(best: float, others: pd.DataFrame) -> str:
    """Compare the seconds of the ``best`` with ZeRO-3's, or else the next one's, and say which may be as fast."""
    if others.empty:
        return "No other way fits"
    gains = [Gain(row.strategy, row.step_s / best) for row in each(others)]
    return predicted_steps.compared([gain for gain in gains if gain.over == "ZeRO-3"] or gains[:1], gains)


def _nothing_fits(ran: pd.DataFrame, options: Mapping[str, str]) -> str:
    least = ran.sort_values("peak_gib", kind="stable").iloc[0]
    helps = [] if options.get("checkpointing") == "true" else ["--checkpointing"]
    helps += ["a smaller --micro-batch"] if int(options.get("micro_batch", "1")) > 1 else []
    rest, nodes = least.gpu_gib - (least.peak_gib - least.states_gib), int(options.get("nodes", "1"))
    if rest > 0:  # the states shrink with more GPUs, at best as all of them share them
        helps.append(f"{max(nodes + 1, math.ceil(nodes * least.states_gib / rest))} nodes or more")
    return (
        f"Nothing fits {least.gpu_gib:g} GiB: {least.strategy} needs least, {least.peak_gib:.3g} GiB, of which model "
        f"states are {least.states_gib:.3g}; {' or '.join(helps) or 'a GPU with more memory'} would help."
    )


def _tables(frames: Frames) -> list[Table]:
    frame = frames["plan"]
    ran, refused = frame[frame.reason == ""], frame[frame.reason != ""]
    step, parts = predicted_steps.columns(ran)
    fastest = ran.step_s[ran.fits].min()
    rows: list[list[Any]] = []
    for row in each(ran):
        tone = "soft" if not row.fits else "good" if row.step_s == fastest else ""
        rows.append(
            [
                Cell(row.strategy, tone), row.step_s, row.tokens_per_second, row.peak_gib,
                Cell(f"{row.gpu_gib - row.peak_gib:.1f}", "" if row.fits else "bad"), *predicted_steps.parts(row),
            ]
        )  # fmt: skip
    columns = [
        "strategy", step, Column("tokens/s", ",.0f"), Column("peak", ".1f"), Column("spare", right=True), *parts,
    ]  # fmt: skip
    note = f"{predicted_steps.NOTE} Peak and spare: GiB of a GPU."
    reasons = [[row.strategy, row.reason] for row in each(refused)]
    return [Table("What fits, the fastest first", columns, rows, note), Table("Not run", ["strategy", "why"], reasons)]


STUDY = Study(
    question="Which way to shard this job fits, and which is the fastest?",
    text="""Compare ways to shard a planned job: what fits, how long a step takes, and where its time goes.

    Dry-runs ZeRO-1, -2, -3 and hpZ by stock DeepSpeed (zero1, zero2, zero3, hpz), and strategies of three letters (IIG)
    by our own engine. Groups are nodes, unless --hpz and --group say otherwise. CONFIG is your DeepSpeed JSON: it is
    run as it is, and with each stage. Writes a table (plan.csv) and a report.
    """,
    columns={"plan": study.COLUMNS},
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    options=(
        click.argument("config", required=False, type=click.Path(), metavar="[CONFIG]"),
        click.option("--compare", default=",".join(COMPARED), help=f"Ways to shard. [default: {','.join(COMPARED)}]"),
        click.option(
            "--gpu-memory", type=float, metavar="GIB", help="Memory of a GPU, GiB. [default: the hardware's]"
        ),
    ),
    decided=("config", "sharding", "stage", "steps", "deepspeed", "graft"),
    usual={"hpz": "", "host": MEASURED_HOST},  # hpz: a node's GPUs
    takes="table and picture",
    replaces="a plan",
    words=("hpZ", "ZeRO-3", "micro-batch", "race", "virtual time", "hardware profile"),
)  # fmt: skip
