"""``python -m benchmarks.peers [WORD]...``: run those suites of ``peers.toml`` whose names contain a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from enum import StrEnum
from pathlib import Path

import click
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.peers.running import Result, run
from benchmarks.peers.suites import List, bring, read


class Said(StrEnum):
    """The result of a peer's test."""

    PASSED = "passed"
    SKIPPED = "skipped by the test"
    REFUSED = "refused by name"
    EXPLAINED = "does not pass"
    FAILED = "failed"


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
def main(words: tuple[str, ...], runs: Path, name: str) -> None:
    """Run tests of torch and DeepSpeed on the simulated GPU. Exit status 1: one failed, and the list has no reason."""
    listed = read()
    chosen = [suite for suite in listed.suite if not words or any(word in suite.name for word in words)]
    if not chosen:
        raise click.UsageError(f"no suite of benchmarks/peers.toml is named like {' or '.join(words)}")
    into = (runs / name).absolute()
    shutil.rmtree(into, ignore_errors=True)
    sources = {source.name: source for source in listed.source}
    rows: list[dict[str, object]] = []
    for suite in track(chosen, "suites", console=Console(stderr=True)):
        source = sources[suite.source]
        try:
            at = bring(source, (runs / "sources").absolute())
        except (OSError, ValueError, subprocess.CalledProcessError) as problem:
            raise click.ClickException(f"the tests of {source.name} cannot be had: {problem}") from problem
        try:
            results = run(
                suite.files, into / re.sub(r"\W+", "-", suite.name), ranks=suite.ranks, gpus=suite.gpus, at=at,
                plugin=source.plugin, options=source.options,
            )  # fmt: skip
        except RuntimeError as problem:
            raise click.ClickException(f"{suite.name}: {problem}") from problem
        rows += [row(suite.name, result, listed) for result in results]
    frame = once(pd.DataFrame(rows))
    frame.to_csv(into / "tests.csv", index=False)
    counts(frame).to_csv(into / "peers.csv", index=False)
    for said, count in Counter(frame.result).most_common():
        click.echo(f"{count:5} {said}")
    if not words:
        for why in sorted({reason.why for reason in listed.reason} - set(frame.why)):
            click.echo(f"no test has this reason any more: {why}")
    failed = frame[frame.result == Said.FAILED]
    for test, why in zip(failed.test, failed.why, strict=True):
        click.echo(f"{test}: {why}")
    raise SystemExit(not failed.empty)


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
    said, why = Said(Said.PASSED), ""
    if result.said == "skipped":
        said, why = Said.SKIPPED, result.why.removeprefix("Skipped: ")
    elif result.said == "failed":
        refused = re.search(r"streamrace: (.+? cannot be simulated)", result.why)
        reason = next((one for one in listed.reason if one.of(result.test, result.why)), None)
        if refused:
            said, why = Said.REFUSED, refused[1]
        elif reason:
            said, why = Said.EXPLAINED, reason.why
        else:
            said, why = Said.FAILED, result.why
    return {"suite": suite, "test": result.test, "result": str(said), "why": why, "seconds": result.seconds}


if __name__ == "__main__":
    main()
