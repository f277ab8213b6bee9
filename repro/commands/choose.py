"""Implements ``choose``: finds the fastest way to shard that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands.json_output import Put, json_output
from streamrace.repro.commands.options import Sections, chosen, job_options
from streamrace.scenarios.job import Job, job
from streamrace.studies.lists import words

# Fields of a job on which the closed forms depend.
_FIELDS = {
    "model", "nodes", "gpus", "group", "hardware", "network", "micro_batch", "sequence", "accumulation", "precision",
}  # fmt: skip


@click.command(cls=Sections)
@click.option("--gpu-memory", type=float, metavar="GIB", help="Memory of a GPU, GiB. [default: the hardware's]")
@click.option(
    "--activations", type=float, default=0.0, metavar="GIB", help="Part of it to keep for activations. [default: 0]"
)
@click.option(
    "--trainable", default="1", help="Fraction of the parameters that is trained: 1, 1/16, peft (1/1000). [default: 1]"
)
@click.option("--compare", default="", help="Ways to shard: IIG, ZeRO-3, hpZ, ... [default: all 14, and hpZ]")
@click.option("--csv", type=click.Path(path_type=Path), help="Also write the table to this file, in bytes and seconds.")
@job_options(*Job.model_fields.keys() - _FIELDS)
@json_output
def choose(csv: Path | None, compare: str, put: Put, **values: Any) -> None:
    """Find the fastest sharding strategy that fits: compare PaRO's strategies and hpZ by their formulas.

    Three letters say how parameters, gradients and optimizer state are sharded: N not at all, I within a group, G
    over all GPUs. Memory is that of model states. Nothing is run. The model may also be a number of parameters (65e9).
    """
    from streamrace.reports.screen import choice
    from streamrace.scenarios.base import ScenarioError
    from streamrace.studies import choose as study

    own = {name: values.pop(name) for name in ("gpu_memory", "activations", "trainable")}
    asked = job(sharding="GGG", **chosen(values, Job))  # of our own engine, which has groups; all ways are compared
    question = study.question(asked, **own, strategies=words(compare))
    frame = study.study(question)
    if csv is not None:
        try:
            frame.to_csv(csv, index=False)
        except OSError as error:
            raise ScenarioError(f"cannot write the table to {csv}: {error.strerror or error}") from error
    console = Terminal()
    choice.show(console, frame, question)
    put(choice.json_text(frame, question))
    if csv is not None:
        console.print(f"File: {csv}", highlight=False, markup=False, soft_wrap=True)
