"""Writes the files that accompany a report's page: data for programs, a timeline for a viewer, text for an issue."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.reports.data.answer import answers
from streamrace.reports.data.loading import Run
from streamrace.reports.data.whole import replace_file
from streamrace.reports.pages import head, html, markdown, run_page, summary
from streamrace.reports.timelines import perfetto
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError

FORMAT = "stream-race-comparison"
VERSION = 1
_METRICS = ("metrics.csv", "metrics.parquet")
_LONGEST_NAME = 100  # characters of a run's name in a file's name
# Errors that a trace from elsewhere may cause: its contents are untrusted.
_FOREIGN = (TraceError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def write(runs: Sequence[Run], target: Path) -> list[Path]:
    """Write the files of the report of ``runs`` into the folder ``target``; return them, in a fixed order.

    ``findings.json``, ``metrics.csv`` and ``.parquet``, ``timeline-NAME.json.gz`` of each run with a race, and
    ``report.md``. The runs are comparable (:func:`streamrace.reports.data.loading.comparable`). Each file is written
    whole or not at all, and the same runs give the same bytes. Raises OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    findings = target / "findings.json"
    html.write(json.dumps(_findings(runs), indent=2, allow_nan=False) + "\n", findings)
    written = [findings, *_metrics(runs, target)]
    written += [
        file for run, name in zip(runs, _file_names(runs), strict=True) for file in _timeline(run, name, target)
    ]
    text = target / "report.md"
    html.write(report(runs), text)
    return [*written, text]


def report(runs: Sequence[Run]) -> str:
    """Return a short report, as Markdown to paste into an issue."""
    worst = summary.worst(runs)
    if not worst.file.races:
        worst = next((run for run in runs if run.file.races), worst)
    answered = {each.found.number: each for each in answers(worst.folder, worst.file)}
    return markdown.render(
        "report.md",
        head=head.of_runs(runs),
        verdict=str(summary.verdict(summary.worst(runs))),
        headline=summary.headline(runs),
        runs=summary.side_by_side(runs),
        several=len(runs) > 1,
        failures=[(run.name, run.file.failure) for run in runs if run.file.failure],
        told=worst.name,
        findings=[(found, answered.get(found.number)) for found in worst.file.found],
        checked=worst.file.basis,
        versions=run_page.ran_of(runs).versions,
        scenario=[f"{name}={_plain(value)}" for name, value in worst.file.scenario.items() if _says(value)],
    )


def _findings(runs: Sequence[Run]) -> dict[str, Any]:
    def of(run: Run) -> dict[str, Any]:
        return {**run.findings, "first_bad_step": run.file.first_bad_step}

    if len(runs) == 1:
        return of(runs[0])
    return {"format": FORMAT, "version": VERSION, "runs": {run.name: of(run) for run in runs}}


def _metrics(runs: Sequence[Run], target: Path) -> list[Path]:
    """Write the losses and norms of all runs. A user's program has none, and no file then."""
    if all(run.steps.empty for run in runs):
        for name in _METRICS:
            (target / name).unlink(missing_ok=True)  # of a report that was there before
        return []
    return tables({run.name: run.steps for run in runs}, "run", target)


def tables(frames: Mapping[str, pd.DataFrame], column: str, target: Path) -> list[Path]:
    """Write ``metrics.csv`` and ``.parquet``: one tidy table, whose first column ``column`` names each row's frame."""
    named = []
    for name, rows in frames.items():
        frame = rows.copy()
        frame.insert(0, column, pd.Series([name] * len(frame), dtype="str"))
        named.append(frame)
    table = pd.concat(named, ignore_index=True)
    files = [target / name for name in _METRICS]
    replace_file(files[0], lambda beside: table.to_csv(beside, index=False, na_rep="nan"))
    replace_file(files[1], lambda beside: table.to_parquet(beside, engine="pyarrow", index=False))
    return files


def _timeline(run: Run, name: str, target: Path) -> list[Path]:
    """Write the steps around the first example of the first race, with all streams of its rank."""
    races = run.file.races
    example = next(iter(races[0].examples), None) if races else None
    trace = file_of(run.folder / "trace", example.rank) if example is not None else None
    if example is None or trace is None or not trace.is_file() or not races[0].is_timed:
        return []
    steps = (example.first.step, example.second.step)
    file = target / f"timeline-{name}.json.gz"
    try:
        replace_file(
            file,
            lambda beside: perfetto.write(trace, races, beside, first_step=min(steps) - 1, last_step=max(steps) + 1),
        )
    except _FOREIGN:
        return []  # a report without a timeline is better than no report
    return [file]


def _file_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names as unique parts of file names: shortened, with unsafe characters replaced."""
    names: dict[str, None] = {}
    for run in runs:
        base = re.sub(r"[^A-Za-z0-9._-]", "_", run.name)[:_LONGEST_NAME]
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names[name] = None
    return list(names)


def _says(value: Any) -> bool:
    """Check whether an option is shown: those that are off or empty are not, a seed of 0 is."""
    return not (value is None or value is False or value in ("", [], {}))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
