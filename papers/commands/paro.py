"""``paro``: trains PaRO's strategies live, against DDP and the formulas; compares the paper's figures with dry runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.lists import among, words

_LIVE = ("compare", "precision", "steps", "ranks", "group", "without")
_PAPER = ("models", "trainable", "workers")
_SWEEP = ("compare", "workers")


@click.command()
@click.option("--paper", "part", flag_value="paper", help="Dry runs of the paper's cases, compared with its figures.")
@click.option("--sweep", "part", flag_value="sweep", help="From which bandwidth on each pays: dry runs, a picture.")
@click.option("--compare", help="Without --paper: only IIG, ZeRO-3, ... [default: all 14]")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="Live: fp32 or bf16. [default: fp32]")
@click.option("--steps", type=click.IntRange(2), help="Live: optimizer steps. [default: 3]")
@click.option("--ranks", type=click.IntRange(1), help="Live: ranks, on two nodes. [default: 4]")
@click.option("--group", type=click.IntRange(1), help="Live: ranks of a group, within which I shards. [default: 2]")
@click.option("--without", multiple=True, metavar="NAME", help="Live: synchronisations to leave out.")
@click.option("--models", help="Paper: only these, llama-2-7b or llama-65b. [default: both]")
@click.option("--trainable", help="Paper: only these, of all, 1/16 and PEFT. [default: all of them]")
@flags.workers("Not live: parallel dry runs.")
@flags.folder("folder for the tables", "paro, paro-paper, ...", chosen=True, replaces="tables")
def paro(part: str | None, name: str | None, runs: Path, overwrite: bool, **values: Any) -> None:
    """Train a small model under PaRO's strategies (arXiv 2310.06003); compare with torch's DDP and the formulas.

    Exit status 1 if memory or bytes differ from the formulas, losses differ from DDP's before the first step, or
    there is a race. With --paper: speed-ups and scaling of full-size models, theirs and ours. With --sweep: on which
    networks each strategy is faster than ZeRO-3, and HO-Ring than a flat ring.
    """
    from streamrace.repro.sessions import folders

    part = part or "live"
    parts: dict[str, tuple[tuple[str, ...], Callable[..., None]]] = {
        "live": (_LIVE, _live),
        "paper": (_PAPER, _paper),
        "sweep": (_SWEEP, _sweep),
    }
    of, run = parts[part]
    given = {option: value for option, value in values.items() if value not in (None, ())}
    if wrong := [option for option in given if option not in of]:
        where = "live, without --paper and --sweep" if wrong[0] in _LIVE else "with --paper"
        raise ScenarioError(f"--{wrong[0]} has a meaning only {where}: leave one of them out")
    of_part = "paro" if part == "live" else f"paro-{part}"

    def folder() -> Path:
        return folders.marked(
            runs / (name or of_part),
            "paro.txt",
            lambda file: file.write_text(
                "".join(f"{key}={value}\n" for key, value in sorted({**given, "part": part}.items())), encoding="utf-8"
            ),
            overwrite=overwrite,
        )

    run(Terminal(), folder, **given)


def _live(console: Console, make_folder: Callable[[], Path], compare: str = "", **options: Any) -> None:
    from papers.screen import paro as report
    from papers.studies import paro as study
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.scenarios import program

    began = time.perf_counter()
    todo = study.scenarios(study.strategies(words(compare)), **options)
    for one in todo:
        one.check()
    folder = make_folder()
    with doing(console, "importing DeepSpeed"):
        program.preload()
    with counting(console) as progress:
        frame = study.live(todo, folder, progress)
    frame.to_csv(folder / "live.csv", index=False)
    first = todo[0]
    title = (
        f"{first.model} {first.size}, {first.ranks} ranks on {first.nodes} nodes in groups of {first.sharding_group}, "
        f"{first.precision}, {first.steps} steps of {first.accumulation} micro-batches"
    )
    report.show(console, frame, title=title, reference=study.reference_title(first))
    _ends(console, folder, ["live.csv"], began)
    if study.wrong(frame).any():
        raise SystemExit(1)


def _paper(
    console: Console, make_folder: Callable[[], Path], models: str = "", trainable: str = "", workers: int | None = None
) -> None:
    from papers.screen import paro_paper as report
    from papers.screen import paro_uneven as more
    from papers.studies import paro_paper as study
    from papers.studies import paro_uneven as uneven
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.scenarios import rehearsal

    began = time.perf_counter()
    known = list(dict.fromkeys(claim.model for claim in study.CLAIMS))
    chosen = among("--models", models, known) if models else known
    trained = among("--trainable", trainable, study.TRAINED) if trainable else list(study.TRAINED)
    claims = [one for one in study.CLAIMS if one.model in chosen and one.trained in trained]
    scalings = [one for one in study.SCALINGS if one.model in chosen and one.trained in trained]
    if not claims:
        raise ScenarioError(f"nothing is compared for {models} with {trainable} trained: choose others")
    folder = make_folder()
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    with counting(console) as progress:
        found = study.times(study.cases_of(claims, scalings), folder, workers=workers, progress=progress)
    gains = study.gains(claims, found)
    gains.to_csv(folder / "gains.csv", index=False)
    report.show_gains(console, gains)
    files = ["gains.csv"]
    if scalings:
        scaling = study.scaling(scalings, found)
        scaling.to_csv(folder / "scaling.csv", index=False)
        report.show_scaling(console, scaling)
        with counting(console) as progress:
            rings = uneven.rings(folder, workers=workers, progress=progress)
        frames = {
            "rings": rings,
            "slow-node": uneven.slow_node(found),
            "sizes": uneven.sizes_differ(),
            "large": uneven.large(),
        }
        for part, frame in frames.items():
            frame.to_csv(folder / f"{part}.csv", index=False)
            more.SHOWN[part](console, frame)
        files += ["scaling.csv", *(f"{part}.csv" for part in frames)]
    _ends(console, folder, files, began)


def _sweep(console: Console, make_folder: Callable[[], Path], compare: str = "", workers: int | None = None) -> None:
    from papers.pictures import paro_sweep as report
    from papers.studies import paro_sweep as study
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.scenarios import rehearsal
    from streamrace.scenarios.sharding.strategy import strategy

    began = time.perf_counter()
    chosen = [str(strategy(name)) for name in words(compare)]
    folder = make_folder()
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    with counting(console) as progress:
        frame = study.sweep(folder, strategies=chosen, workers=workers, progress=progress)
    frame.to_csv(folder / "sweep.csv", index=False)
    title = "Times as fast as ZeRO-3 (7B, 32 GPUs), or as a flat ring (1 GB); grey: not 5 % faster"
    report.draw(frame, folder / "sweep.png", title=title)
    report.show(console, frame)
    _ends(console, folder, ["sweep.csv", "sweep.png"], began)


def _ends(console: Console, folder: Path, files: list[str], began: float) -> None:
    from streamrace.repro.sessions import staging

    folder = staging.commit(folder)
    took = f"{time.perf_counter() - began:.0f} s"
    console.print(f"Files: {folder}/: {', '.join(files)} ({took})", highlight=False, markup=False)
