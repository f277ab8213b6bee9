"""Builds the report of one run, or of several for comparison, as one page of HTML (:mod:`reports.pages.html`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from streamrace.detectors import Race, Side
from streamrace.reports.charts import checksum_map, curves, edge, moment_chart
from streamrace.reports.charts.frame import Chart
from streamrace.reports.data.answer import answers
from streamrace.reports.data.campaigns import CampaignFolder
from streamrace.reports.data.findings import FoundRace
from streamrace.reports.data.loading import ReadRun, Run, Source
from streamrace.reports.data.matrix import Tried, matrix, timing_of
from streamrace.reports.pages import head, html, summary
from streamrace.reports.pages.words import VERDICTS, WORDS
from streamrace.reports.text import race as sentences
from streamrace.reports.timelines import moment
from streamrace.studies.table import Column, Table, each
from streamrace.trace import wording
from streamrace.trace.files import file_of

_SPREAD = 12  # rows of parameters with values that are not finite
_OURS, _DEEPSPEED = ("sharding", "rings", "without"), ("fix",)  # options that decide how training is ordered
_MODEL = ("model", "size")
_NAMES = 6  # names of memory that are shown at once
_FILES = {
    "report.md": "the same in short, to paste into an issue",
    "findings.json": "for programs",
    "metrics.csv": "the numbers",
    "metrics.parquet": "the same for pandas",
}


def page(runs: Sequence[Run], files: Sequence[tuple[str, str]] = (), campaigns: Sequence[CampaignFolder] = ()) -> str:
    """Return the page. ``files``: names and descriptions of its files; ``campaigns``: for the matrix of fixes.

    The runs are comparable (:func:`streamrace.reports.data.loading.comparable`); the one with the gravest verdict is
    shown in detail.
    """
    subject = summary.worst(runs)
    verdict = summary.verdict(subject)
    return html.render(
        "report.html",
        _charts(runs, subject),
        title=f"{verdict}: {', '.join(run.name for run in runs)}",
        head=head.of_runs(runs),
        verdict=str(verdict),
        verdicts=VERDICTS,
        tone=verdict.tone,
        headline=summary.headline(runs),
        runs=summary.side_by_side(runs) if len(runs) > 1 else None,
        told=subject.name,
        facts=summary.facts(subject),
        answers=[one for one in answers(subject.folder, subject.file) if one.found.suppressed is None],
        findings=findings(subject.file.found, subject.sources),
        checked=_checked(subject),
        compared=bool(len(subject.checksums)),
        spread=_spread(subject),
        watch=_watch(subject),
        replay=summary.replay(subject),
        ran=ran_of(runs),
        costs=summary.costs(runs),
        matrix=matrix([*map(_tried, runs), *(campaign.tried for campaign in campaigns)]),
        words=WORDS,
        files=files,
    )


def _charts(runs: Sequence[Run], subject: Run) -> dict[str, Chart]:
    charts = dict(curves.draw(runs))
    drawn = {"checksums": checksum_map.draw(subject), "moment": _moment(subject)}
    return charts | {name: chart for name, chart in drawn.items() if chart is not None}


def _moment(run: Run) -> Chart | None:
    """Draw the first finding's first example, preferably one that manifested in this timing."""
    for race in [found.race for found in run.file.found[:1]]:
        for example in sorted(race.examples, key=lambda occurrence: not occurrence.manifested)[:1]:
            window = moment.window(file_of(run.folder / "trace", example.rank), example.first, example.second)
            if window is not None:
                return moment_chart.draw(window, race)
    return None


def findings(found: Sequence[FoundRace], sources: Mapping[str, Source]) -> list[dict[str, Any]]:
    """Return findings for the template: the race that each is described by, and the others that lack the same wait."""
    return [
        {
            "number": one.number,
            **race(one.race, sources),
            "others": [(number, race(other, sources)) for number, other in one.others.items()],
        }
        for one in found
    ]


def race(race: Race, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Return a race for the template."""
    return {
        "kind": race.kind,
        "sentences": sentences.of_race(race, most=_NAMES),
        "edge": edge.svg(race),
        "sides": [_side("first", race.first, sources), _side("second", race.second, sources)],
    }


def _checked(run: Run) -> dict[str, Any] | None:
    """Return the basis of a clean verdict; for a program of the user's own also the parts that were not seen."""
    basis = run.file.basis
    if basis is None:
        return None
    held = [
        {"sentence": wording.capital(wait.sentence), "races": [race(pair, run.sources) for pair in wait.races]}
        for wait in basis.held
    ]
    scope = [*(basis.dry.sentences() if basis.dry else ()), *basis.scope]
    return {**vars(basis), "held": held, "wrong": basis.wrong, "others": basis.others, "scope": scope}


def _side(word: str, side: Side, sources: Mapping[str, Source]) -> dict[str, Any]:
    stack = [wording.frame(frame, path=True) for frame in side.stack]
    lines: list[tuple[int, str, bool]] = []
    source = sources.get(side.place)
    if source is not None:
        text = dedent("\n".join(source.text)).split("\n")  # without the common indentation
        lines = [(number, line, number == source.line) for number, line in enumerate(text, source.first)]
    return {
        "order": word,
        "access": sentences.access(side),
        "place": stack[0] if stack else sentences.NOWHERE,
        "stack": stack[1:],
        "lines": lines,
    }


def _spread(run: Run) -> Table | None:
    """Return the table of the first parameters with values that are not finite."""
    bad = run.checksums[run.checksums["not_finite"] > 0].sort_values(["step", "turn"], kind="stable")
    shown = each(bad.head(_SPREAD))
    rows = [[f"{row.step}", row.parameter, f"{row.not_finite} of {row.uses}", row.first_rank] for row in shown]
    columns = ["step", "parameter", "uses not finite", Column("lowest rank", "d")]
    more = f"And {len(bad) - _SPREAD:,} more rows." if len(bad) > _SPREAD else ""
    return Table("", columns, rows, more, key="spread") if rows else None


def _watch(run: Run) -> str:
    watch = run.file.watch
    return str(watch.get("sentence") or json.dumps(watch, ensure_ascii=False)) if watch else ""


def _tried(run: Run) -> Tried:
    file = run.file
    diverged = bool((file.divergence and file.divergence.parameter) or file.diverged)
    return Tried(summary.fix(run), timing_of(file.scenario), int(diverged), 1)


class RunMetadata(NamedTuple):
    """The table of versions and differing options, and each run's whole configuration, for the template."""

    versions: Table
    details: Sequence[Table]


def ran(entries: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]) -> RunMetadata:
    """Return the metadata of runs, given as name, versions, scenario and hardware profile (empty if not kept)."""
    packages = dict.fromkeys(name for _, versions, _, _ in entries for name in versions)
    rows = [[name, *(str(versions.get(name, "")) for _, versions, _, _ in entries)] for name in packages]
    rows += [
        [name, *(_plain(scenario.get(name, "")) for _, _, scenario, _ in entries)]
        for name in _differing([scenario for _, _, scenario, _ in entries])
    ]
    details = [
        Table(
            name,
            ["", ""],
            [[str(option), _plain(value)] for option, value in scenario.items()]
            + [[f"hardware profile: {field}", _plain(value)] for field, value in profile.items()],
            sides=True,
        )
        for name, _, scenario, profile in entries
        if scenario or profile
    ]
    return RunMetadata(Table("", ["version", *(name for name, *_ in entries)], rows, key="versions"), details)


def ran_of(runs: Sequence[ReadRun]) -> RunMetadata:
    return ran([(run.name, run.file.versions, run.file.scenario, run.file.profile) for run in runs])


def _differing(scenarios: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the model, and the options in which the runs differ; for a single run those that matter most."""
    names = list(dict.fromkeys(name for scenario in scenarios for name in scenario))
    model = [name for name in _MODEL if name in names]
    if len(scenarios) == 1:
        ours = scenarios[0].get("sharding")
        return model + [name for name in (*(_OURS if ours else _DEEPSPEED), "hardware", "seed") if name in names]
    return model + [
        name for name in names if name not in model and len({_plain(scenario.get(name)) for scenario in scenarios}) > 1
    ]


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def told_of(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the names of files that were written next to a page, each with a description."""
    return [(file.name, _FILES.get(file.name, "a timeline: open it in ui.perfetto.dev")) for file in files]
