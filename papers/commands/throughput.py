"""``throughput``: compares published step times of A100 and H100 runs with dry runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from streamrace.reports.screen.console import Terminal
from streamrace.repro.commands import flags
from streamrace.studies.lists import among


@click.command()
@click.option("--sources", default="", help="Only rows of these sources, with commas. [default: all]")
@click.option(
    "--model-parallel", is_flag=True, help="Rows with tensor or pipeline parallelism, as trainings of Megatron-core."
)
@flags.workers()
@flags.folder("folder for the table", "throughput", replaces="table")
def throughput(sources: str, model_parallel: bool, workers: int | None, name: str, runs: Path, overwrite: bool) -> None:
    """Published step times of training on A100 and H100, beside those of dry runs.

    From facts alone: no figure is fitted to a step time. Beside them, the errors with one factor that the rows of the
    other sources give; and for each row that is off by more than a quarter the part that would explain it.
    """
    from papers.pictures import throughput as picture
    from papers.screen import throughput as report
    from papers.studies import throughput as study
    from papers.studies.throughput_rows import FILE, MODEL_PARALLEL
    from streamrace.reports.screen.terminal import doing
    from streamrace.repro.commands.progress import counting
    from streamrace.repro.sessions import folders, staging
    from streamrace.scenarios import rehearsal

    began = time.perf_counter()
    console = Terminal()
    file = MODEL_PARALLEL if model_parallel else FILE
    known = list(study.chosen(file=file).source_id.unique())
    rows = study.chosen(among("--sources", sources, known) if sources else known, file)
    folder = folders.marked(
        runs / name, "throughput.txt", lambda file: file.write_text(f"{sources}\n", encoding="utf-8"),
        overwrite=overwrite,
    )  # fmt: skip
    if model_parallel:
        from papers.programs import megatron

        megatron.make_importable(lambda sentence: console.print(sentence, highlight=False))
    with doing(console, "importing DeepSpeed"):
        rehearsal.preload()
    with counting(console) as progress:
        frame = study.study(rows, folder, workers=workers, progress=progress)
    frame.to_csv(folder / "throughput.csv", index=False, lineterminator="\n")
    picture.draw(frame, folder / "throughput.png")
    report.show(console, frame)
    folder = staging.commit(folder)
    took = f"{time.perf_counter() - began:.0f} s"
    console.print(f"Files: {folder}/: throughput.csv, throughput.png ({took})", highlight=False)
