"""Implements ``choose``: finds the fastest way to shard that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands.json_output import Put, json_output
from streamrace.studies.lists import words

_ABOVE = click.IntRange(1)


@click.command()
@click.option("--model", required=True, help="A full-size model by name, or a number of parameters (65e9).")
@click.option("--gpu-memory", type=float, metavar="GB", help="Memory of a GPU, 10^9 bytes. [default: the hardware's]")
@click.option("--activations", type=float, metavar="GB", help="Part of it to keep for activations. [default: 0]")
@click.option("--nodes", type=_ABOVE, help="Number of nodes. [default: 4]")
@click.option("--gpus", type=_ABOVE, help="GPUs per node. [default: the hardware's]")
@click.option("--group", type=_ABOVE, help="Ranks of a group (I shards within one). [default: a node]")
@click.option("--hardware", help="Hardware profile: a name, or a .toml file. [default: dgx-a100-roce]")
@click.option("--within", type=float, help="Gbit/s of a GPU within its group. [default: the hardware's]")
@click.option("--between", type=float, help="Gbit/s of a GPU between groups. [default: the hardware's]")
@click.option("--trainable", help="Fraction of the parameters that is trained: 1, 1/16, peft (1/1000). [default: 1]")
@click.option("--accumulation", type=_ABOVE, help="Micro-batches per optimizer step. [default: 10]")
@click.option("--micro-batch", type=_ABOVE, help="Sequences per micro-batch and GPU. [default: 4]")
@click.option("--sequence", type=_ABOVE, help="Tokens per sequence. [default: 512]")
@click.option("--precision", help="bf16 or fp32. [default: bf16]")
@click.option("--strategies", default="", help="Strategies: IIG, ZeRO-3, hpZ, ... [default: all 14, and hpZ]")
@click.option("--csv", type=click.Path(path_type=Path), help="Also write the table to this file, in bytes and seconds.")
@json_output
def choose(csv: Path | None, strategies: str, put: Put, **values: Any) -> None:
    """Find the fastest sharding strategy that fits: compare PaRO's strategies and hpZ by their formulas.

    Three letters say how parameters, gradients and optimizer state are sharded: N not at all, I within a group, G
    over all GPUs. Memory is that of model states. Nothing is run.
    """
    from streamrace.reports.screen import choice
    from streamrace.scenarios.base import ScenarioError
    from streamrace.studies import choose as study

    given = {name: value for name, value in values.items() if value is not None}
    question = study.question(**given, strategies=words(strategies))
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
