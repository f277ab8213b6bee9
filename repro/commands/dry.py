"""Implements ``dry``: rehearses a job of any size before GPU hours are spent on it."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.repro.sessions.release import become, versions, with_deepspeed
from streamrace.scenarios.job import MEASURED_HOST


@click.command(cls=Sections)
@job_options(usual={"host": MEASURED_HOST})
@flags.packages()
@flags.run_folder("dry- and the time")
@flags.expect("clean", "race")
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Run as this rank. [default: 0]")
@click.option("--one-rank", is_flag=True, help="Do not compare ranks: assume that all others do the same.")
@click.option(
    "--exact/--extend",
    default=None,
    help="Run all layers, or a few and repeat them. [default: --extend from 40 layers on]",
)
@json_output
def dry(
    packages: tuple[str, ...],
    name: str | None,
    runs: Path,
    overwrite: bool,
    expect: str | None,
    rank: int,
    one_rank: bool,
    exact: bool | None,
    put: Put,
    **values: Any,
) -> None:
    """Rehearse a full-size training job: stock DeepSpeed as one rank of many, with tensors without values.

    Reports races and whether they show, the step time and its parts, memory and traffic, and whether the other ranks
    do the same. Exit status: 0 done (and as expected), 1 not as expected, or the job does not fit on the GPU, or ranks
    of one class differ; 2 wrong usage, 3 the dry run failed, 130 interrupted.
    """
    request = _job(with_deepspeed(values, packages), rank)
    from streamrace.reports.data import sources
    from streamrace.reports.data.dry import DryFile
    from streamrace.reports.screen import dry as report
    from streamrace.reports.screen.terminal import doing
    from streamrace.reports.timelines import perfetto
    from streamrace.repro.sessions import folders, staging
    from streamrace.scenarios import rehearsal
    from streamrace.studies.dry_run import Rehearsed
    from streamrace.studies.layers import extend

    console = Terminal()
    become([*packages, *([] if request.sharding else [f"deepspeed=={request.deepspeed}"])])
    folder = folders.of_job(runs / (name or f"dry-{datetime.now():%Y%m%d-%H%M%S}"), request, overwrite=overwrite)
    with doing(console, _title(request)):
        rehearsal.preload()

    def tell(text: str) -> None:
        console.print(f"  {text}", highlight=False)

    def write(result: Rehearsed) -> None:
        sources.write(result.races, folder)
        with doing(console, "writing timeline.json.gz"):
            perfetto.write(result.trace, result.races, folder / "timeline.json.gz", first_step=result.step.step)

    result = extend.rehearsed(request, folder, tell, rank=rank, exact=exact, compare=not one_rank, meanwhile=write)
    sentences = report.output(result)
    file = DryFile.of(result, sentences, versions() | _allocator())
    file.write(folder)
    panel = report.panel(result, sentences)
    report.show(console, panel, staging.commit(folder))  # keep has moved its trace
    put(file.text())
    if expect and bool(result.races) != (expect == "race"):
        console.print(f"Expected {expect}, found {report.verdict(result)}.", style="red")
        raise SystemExit(1)
    if not result.fits or (result.classes and result.classes.unequal):
        raise SystemExit(1)


def _allocator() -> dict[str, str]:
    """Return the settings of torch's allocator, as they change what is reserved; empty for torch's own."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    return {"PYTORCH_ALLOC_CONF": settings} if settings else {}


def _job(values: dict[str, Any], rank: int) -> Any:
    """Build the job. Known mistakes are refused here: before the slow import of DeepSpeed, and without a folder."""
    from streamrace.scenarios.base import ScenarioError
    from streamrace.scenarios.full_size import ModelError, subject
    from streamrace.scenarios.job import Job, predicted

    request = predicted(**chosen(values, Job))
    request.check()
    if rank >= request.ranks:
        raise ScenarioError(f"there is no rank {rank}: the job has 0 to {request.ranks - 1}")
    if ":" not in request.model:  # a user's own function runs in the rank, not here
        try:
            subject(request.model, attention=request.attention)
        except ModelError as error:
            raise ScenarioError(str(error)) from None
    return request


def _title(job: Any) -> str:
    if job.sharding:
        sharding = f"our own engine under {job.sharding}, groups of {job.sharding_group}"
    elif job.config:
        sharding = f"DeepSpeed as {job.config} says"
    else:
        sharding = f"ZeRO-{job.stage}" + (f", hpZ {job.hpz}" if job.hpz > 1 else ", no hpZ" if job.stage == 3 else "")
    batch = f"micro-batch {job.micro_batch}" if not job.config or "micro_batch" in job.model_fields_set else "sequences"
    return (
        f"{job.model}, {sharding}, {job.nodes} nodes of {job.gpus} GPUs ({job.machine}), {batch} of "
        f"{job.sequence} tokens" + ("" if job.sharding else f", {job.ordered_by}")
    )
