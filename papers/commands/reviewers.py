"""``reviewers``: answers the questions of both papers' reviewers that the papers leave open."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.studies.lists import among

_BY_FORMULA = {"pareto", "failure"}  # parts that need no run
_TEXT = "What to answer, with commas"
PARTS = ("validation", "batches", "pareto", "failure")


@click.command()
@click.option("--parts", default=",".join(PARTS), help=f"{_TEXT}. [default: {','.join(PARTS)}]")
@flags.workers("Parallel runs.")
@flags.folder("folder for tables and pictures", "reviewers", replaces="tables")
def reviewers(parts: str, workers: int | None, name: str, runs: Path, overwrite: bool) -> None:
    """Answer the questions of both papers' reviewers: a table and a picture for each.

    validation: the loss on a held-out split under ZeRO-3, hpZ, and hpZ without its synchronisation, live. batches:
    throughput at the largest micro-batch that fits, hpZ against ZeRO-3, by model, GPUs, card and network. pareto:
    memory against communication of all strategies, with a lower bound. failure: the cost of interruptions, by
    checkpoint interval, strategy and scale.
    """
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.sessions import folders, staging
    from streamrace.scenarios import program

    began = time.perf_counter()
    console = Terminal()
    wanted = among("--parts", parts, PARTS)
    folder = folders.marked(
        runs / name, "reviewers.txt", lambda file: file.write_text(f"{parts}\n", encoding="utf-8"), overwrite=overwrite
    )
    if set(wanted) - _BY_FORMULA:
        with doing(console, "importing DeepSpeed"):
            program.preload()
    answers: dict[str, Callable[..., list[str]]] = {
        "validation": _validation,
        "batches": _batches,
        "pareto": _pareto,
        "failure": _failure,
    }
    files = [file for part in wanted for file in answers[part](console, folder, workers=workers)]
    folder = staging.commit(folder)
    console.print(f"Files: {folder}/: {', '.join(files)} ({time.perf_counter() - began:.0f} s)", highlight=False)


def _validation(console: Console, folder: Path, *, workers: int | None) -> list[str]:
    from papers.pictures import validation as picture
    from papers.screen import reviewers as report
    from papers.studies import validation as study
    from streamrace.repro.commands.progress import counting

    with counting(console) as progress:
        frame = study.study(study.scenarios(), folder, workers=workers, progress=progress)
    _write(frame, folder / "validation.csv")
    picture.draw(frame, folder / "validation.png")
    report.validation(console, frame)
    return ["validation.csv", "validation.png"]


def _batches(console: Console, folder: Path, *, workers: int | None) -> list[str]:
    from papers.pictures import batches as picture
    from papers.screen import reviewers as report
    from papers.studies import batches as study
    from streamrace.repro.commands.progress import counting

    with counting(console) as progress:
        frame = study.study(folder, workers=workers, progress=progress)
    gained = study.gains(frame)
    crossings = study.crossings(gained)
    _write(frame, folder / "batches.csv")
    _write(gained, folder / "batches-gains.csv")
    _write(crossings, folder / "batches-crossings.csv")
    picture.draw(gained, folder / "batches.png")
    report.batches(console, gained, crossings)
    return ["batches.csv", "batches-gains.csv", "batches-crossings.csv", "batches.png"]


def _pareto(console: Console, folder: Path, **_: Any) -> list[str]:
    from papers.pictures import pareto as picture
    from papers.screen import reviewers as report
    from papers.studies import pareto as study

    frame = study.study(study.cases())
    _write(frame, folder / "pareto.csv")
    picture.draw(frame, folder / "pareto.png", [study.TradeCase("llama-65b"), study.TradeCase("llama-65b", "1/16")])
    report.pareto(console, frame)
    return ["pareto.csv", "pareto.png"]


def _failure(console: Console, folder: Path, **_: Any) -> list[str]:
    from papers.pictures import failure as picture
    from papers.screen import reviewers as report
    from papers.studies import failure as study

    frame, events = study.study(), study.events()
    _write(frame, folder / "failure.csv")
    _write(events, folder / "failure-events.csv")
    picture.draw(events, folder / "failure.png")
    report.failure(console, frame, events)
    return ["failure.csv", "failure-events.csv", "failure.png"]


def _write(frame: Any, path: Path) -> None:
    frame.to_csv(path, index=False, lineterminator="\n")
