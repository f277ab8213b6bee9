"""``paro``: PaRO's strategies, trained live beside DDP and the formulas, and the paper's figures beside dry runs."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console

from repro.commands.frames import words


@click.command()
@click.option("--strategies", default="", help="Only these: IIG, ZeRO-3, ... [default: all 14]")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", help="[default: fp32]")
@click.option("--steps", type=click.IntRange(2), default=3, help="Optimizer steps. [default: 3]")
@click.option("--ranks", type=click.IntRange(1), default=4, help="Ranks, on two nodes. [default: 4]")
@click.option("--group", type=click.IntRange(1), help="Ranks of a group (I shards within one). [default: a node]")
@click.option("--without", multiple=True, metavar="NAME", help="Take away a synchronisation of our engine.")
@click.option("--name", default="paro", help="Name of the folder that takes the tables. [default: paro]")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Where run folders go. [default: runs]"
)
@click.option("--overwrite", is_flag=True, help="Replace tables of the same name.")
def paro(
    strategies: str,
    precision: str,
    steps: int,
    ranks: int,
    group: int | None,
    without: tuple[str, ...],
    name: str,
    runs: Path,
    overwrite: bool,
) -> None:
    """PaRO's strategies: a small model trains under each one, beside torch's DDP and the formulas.

    Exit status 1 when memory or bytes are not what the formulas say, losses are not those of DDP before the first
    step, or there is a race.
    """
    console = Console()
    _live(console, strategies, precision, steps, ranks, group, without, runs / name, overwrite=overwrite)


def _live(
    console: Console,
    strategies: str,
    precision: str,
    steps: int,
    ranks: int,
    group: int | None,
    without: tuple[str, ...],
    path: Path,
    *,
    overwrite: bool,
) -> None:
    from reports import paro as report
    from reports.terminal import doing
    from repro.commands import session
    from repro.commands.progress import counting
    from scenarios import program
    from studies import paro as study

    began = time.perf_counter()
    todo = study.scenarios(
        study.strategies(words(strategies)), precision=precision, steps=steps, without=without, ranks=ranks, group=group
    )
    for one in todo:
        one.check()
    folder = session.new_folder(path, todo[0], overwrite=overwrite)
    with doing(console, "importing DeepSpeed"):
        program.preload()
    with counting(console) as tell:
        frame = study.live(todo, folder, tell)
    frame.to_csv(folder / "live.csv", index=False)
    first = todo[0]
    title = (
        f"{first.model} {first.size}, {first.ranks} ranks on {first.nodes} nodes in groups of {first.sharding_group}, "
        f"{first.precision}, {first.steps} steps of {first.accumulation} micro-batches"
    )
    report.show(console, frame, title=title, reference=study.reference_title(first))
    console.print(f"File: {folder}/live.csv ({time.perf_counter() - began:.0f} s)", highlight=False, markup=False)
    if frame.races.any() or any(study.differs(row) for row in frame.itertuples()):
        raise SystemExit(1)
