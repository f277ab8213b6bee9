"""``python -m benchmarks.reach [WORD]...``: run those programs of ``reach.toml`` whose names contain a word."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.reach.programs_list import programs
from benchmarks.reach.running import Result, Said, run


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1)
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default="runs", show_default=True,
              help="Folder of the run's folder.")  # fmt: skip
@click.option("--name", default="reach", show_default=True, help="Run's folder: reach.csv, and what programs print.")
@click.option("--jobs", default=2, show_default=True, help="Programs that run at the same time.")
def main(words: tuple[str, ...], runs: Path, name: str, jobs: int) -> None:
    """Run public programs on the simulated GPU. Exit status 1: one failed, or had other values than on the CPU."""
    chosen = [one for one in programs() if not words or any(word in one.name for word in words)]
    if not chosen:
        raise click.UsageError(f"no program of benchmarks/reach.toml is named like {' or '.join(words)}")
    into = runs / name
    into.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        made = pool.map(lambda one: run(one, into), chosen)
        results = list(track(made, "programs", total=len(chosen), console=console))
    table(results).to_csv(into / "reach.csv", index=False)
    counts = Counter(result.said for result in results)
    for said in Said:
        if counts[said]:
            click.echo(f"{counts[said]:4} {said}")
    for result in results:
        if result.said in (Said.FAILED, Said.OTHER, Said.REFUSED):
            click.echo(f"{result.program.name}: {result.said}: {result.why}")
    raise SystemExit(bool(counts[Said.FAILED] or counts[Said.OTHER]))


def table(results: list[Result]) -> pd.DataFrame:
    """Return a row for each program, with the versions of its packages."""
    rows = [
        {
            "program": result.program.name,
            "packages": ", ".join(map(_versioned, result.program.packages)),
            "result": str(result.said),
            "why": result.why,
            "verdict": result.verdict,
            "seconds": round(result.seconds, 1),
        }
        for result in results
    ]
    return pd.DataFrame(rows)


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not installed)"


if __name__ == "__main__":
    main()
