"""``python -m benchmarks.peers [WORD]...``: run those suites of ``peers.toml`` whose names contain a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import click
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.peers import beside
from benchmarks.peers.judged import Said, judged
from benchmarks.peers.running import Result, run
from benchmarks.peers.suites import List, Suite, bring, read
from streamrace.compiling import BuildError
from tests.real_build.building import RealBuild, ready


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1)
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default="runs", show_default=True,
              help="Folder of the run's folder, and of the sources.")  # fmt: skip
@click.option(
    "--name",
    default="peers",
    show_default=True,
    help="Run's folder: tests.csv, peers.csv with their counts, and what they print.",
)
@click.option(
    "--real-build",
    is_flag=True,
    help="Run the suites of one process on torch's CUDA build over fake CUDA libraries, too, and compare: compared.csv "
    "and real-build.csv, with the counts. Exit status 1: also for a difference without a reason.",
)
def main(words: tuple[str, ...], runs: Path, name: str, real_build: bool) -> None:
    """Run tests of torch and DeepSpeed on the simulated GPU. Exit status 1: one failed, and the list has no reason."""
    listed = read()
    chosen = [
        suite
        for suite in listed.suite
        if (not words or any(word in suite.name for word in words)) and (suite.real_build or not real_build)
    ]
    if not chosen:
        raise click.UsageError(f"no suite of benchmarks/peers.toml is named like {' or '.join(words)}")
    real = _ready() if real_build else None
    into = (runs / name).absolute()
    shutil.rmtree(into, ignore_errors=True)
    rows: list[dict[str, object]] = []
    compared: list[dict[str, str]] = []
    for suite in track(chosen, "suites", console=Console(stderr=True)):
        folder = into / re.sub(r"\W+", "-", suite.name)
        results = _run(suite, listed, runs, folder)
        rows += [row(suite.name, result, listed) for result in results]
        if real:
            theirs = _run(suite, listed, runs, folder.with_name(f"{folder.name}-real"), real)
            compared += beside.compare(suite.name, results, theirs, listed)
    frame = once(pd.DataFrame(rows))
    frame.to_csv(into / "tests.csv", index=False)
    counts(frame).to_csv(into / "peers.csv", index=False)
    _tell(frame.result)
    if not words:
        whys = {row["why"] for row in compared} if real else set(frame.why)
        for why in sorted({reason.why for reason in listed.reason if (reason.build == "real") == bool(real)} - whys):
            click.echo(f"no test has this reason any more: {why}")
    failed = frame[frame.result == Said.FAILED]
    for test, why in zip(failed.test, failed.why, strict=True):
        click.echo(f"{test}: {why}")
    differ = real is not None and not _told(compared, into)
    raise SystemExit(differ or not failed.empty)


def _ready() -> RealBuild:
    try:
        return ready(click.echo)
    except BuildError as problem:
        raise click.ClickException(str(problem)) from problem


def _run(suite: Suite, listed: List, runs: Path, into: Path, real: RealBuild | None = None) -> list[Result]:
    """Return the results of a suite. Its tests are downloaded first if necessary."""
    source = next(one for one in listed.source if one.name == suite.source)
    try:
        at = bring(source, (runs / "sources").absolute())
    except (OSError, ValueError, subprocess.CalledProcessError) as problem:
        raise click.ClickException(f"the tests of {source.name} cannot be had: {problem}") from problem
    try:
        return run(
            suite.files, into, ranks=suite.ranks, gpus=suite.gpus, at=at, plugin=source.plugin, options=source.options,
            real=real,
        )  # fmt: skip
    except RuntimeError as problem:
        raise click.ClickException(f"{suite.name}: {problem}") from problem


def _told(compared: list[dict[str, str]], into: Path) -> bool:
    """Write down on which build the tests pass, and return whether each difference has a reason."""
    frame = pd.DataFrame(compared)
    frame.to_csv(into / "compared.csv", index=False)
    beside.counts(frame).to_csv(into / "real-build.csv", index=False)
    _tell(frame.passes)
    faults = frame[frame.fault != ""]
    for test, passes, why in zip(faults.test, faults.passes, faults.fault, strict=True):
        click.echo(f"{test} passes {passes}: {why}")
    return faults.empty


def _tell(column: pd.Series[str]) -> None:
    for said, count in Counter(column).most_common():
        click.echo(f"{count:5} {said}")


def once(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out where a test was skipped, if it ran in another suite: with other ranks, or devices."""
    ran = set(frame.test[frame.result != Said.SKIPPED])
    skipped = frame.result == Said.SKIPPED
    return frame[~(skipped & frame.test.isin(ran))].drop_duplicates(["test", "result"])


def counts(frame: pd.DataFrame) -> pd.DataFrame:
    """Count the tests of each suite with the same result and reason; ``example`` is the first of them."""
    groups = frame.groupby(["suite", "result", "why"], sort=False)
    return groups.agg(tests=("test", "size"), example=("test", "first")).reset_index()


def row(suite: str, result: Result, listed: List) -> dict[str, object]:
    """Return a row of the table. A failure has the first reason of the list that fits it."""
    of = judged(result, listed)
    return {"suite": suite, "test": result.test, "result": str(of.said), "why": of.why, "seconds": result.seconds}


if __name__ == "__main__":
    main()
