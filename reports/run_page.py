"""A report of one run, or of several side by side, as one page of HTML (:mod:`reports.html`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from markupsafe import Markup

from reports import checksum_map, curves, edge, html, moment, moment_chart, summary
from reports.charts import Chart
from reports.loading import Run, Source
from reports.words import VERDICTS, WORDS
from repro.trace import file_of

_SPREAD = 12  # rows of what spread
_NAMES = 6  # names of memory in the open
_TONES = {"clean": "good", "hidden": "warn", "unknown": "warn"}


def page(runs: Sequence[Run], files: Sequence[tuple[str, str]] = ()) -> str:
    """The page as text. ``files``: what lies beside it, and what that is.

    The runs are comparable (:func:`reports.loading.comparable`); what is told in detail is the gravest of them.
    """
    told = summary.worst(runs)
    verdict = summary.verdict(told)
    ran = [_ran(run) for run in runs]
    return html.render(
        "report.html",
        _charts(runs, told),
        title=f"{verdict}: {', '.join(run.name for run in runs)}",
        verdict=verdict,
        verdicts=VERDICTS,
        tone=_tone(verdict),
        tones={name: _tone(name) for name in VERDICTS},
        headline=summary.headline(runs),
        runs=[run.name for run in runs],
        columns=summary.columns(runs),
        told=told.name,
        facts=summary.facts(told),
        races=[_race(race, told.sources) for race in told.findings["races"]],
        compared=bool(len(told.checksums)),
        spread=_spread(told),
        watch=_watch(told),
        replay=summary.replay(told),
        ran=ran,
        packages=list(dict.fromkeys(name for run in ran for name in run["versions"])),
        differing=_differing(ran),
        words=WORDS,
        files=files,
    )


def _tone(verdict: str) -> str:
    return _TONES.get(verdict, "bad")


def _charts(runs: Sequence[Run], told: Run) -> dict[str, Chart]:
    charts = dict(curves.draw(runs))
    drawn = {"checksums": checksum_map.draw(told), "moment": _moment(told)}
    return charts | {name: chart for name, chart in drawn.items() if chart is not None}


def _moment(run: Run) -> Chart | None:
    """The first race's first example; one that this timing shows, where there is one."""
    for race in run.findings["races"][:1]:
        examples = sorted(race["examples"], key=lambda one: not one["shown"])
        for example in examples[:1]:
            seen = moment.moment(file_of(run.folder / "trace", example["rank"]), example["first"], example["second"])
            if seen is not None:
                return moment_chart.draw(seen, race)
    return None


def _race(race: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    names = sorted({f"{name['kind']} {name['name']}" for name in race["names"]})
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    ranks = ", ".join(map(str, race["ranks"][:16])) + (" and more" if len(race["ranks"]) > 16 else "")
    return {
        "kind": race["kind"],
        "missing": html.shortened(f"Missing: {race['missing_wait']}"),
        "often": f"{race['occurrences']:,} times on rank {ranks}; this timing shows {race['shown']:,} of them, "
        f"{summary.margin(race)}.",
        "edge": Markup(edge.svg(race)),
        "sides": [_side(word, race[word], sources) for word in ("first", "second")],
        "memory": html.shortened(", ".join(names[:_NAMES]) + more or "unnamed"),
    }


def _side(word: str, side: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    stack = [html.shortened(f"{frame['file']}:{frame['line']} {frame['function']}") for frame in side["stack"]]
    lines: list[tuple[int, str, bool]] = []
    if side["stack"]:
        frame = side["stack"][0]
        source = sources.get(f"{frame['file']}:{frame['line']}")
        if source is not None:
            lines = [(number, text, number == source.line) for number, text in enumerate(source.text, source.first)]
    return {
        "order": word,
        "access": html.shortened(summary.place(side)),
        "place": stack[0] if stack else "no place is known: it is not a call of the program's",
        "stack": stack[1:],
        "lines": lines,
    }


def _spread(run: Run) -> list[dict[str, Any]]:
    """The first parameters with values that are not finite."""
    found = run.checksums[run.checksums["not_finite"] > 0]
    rows = found.sort_values("step", kind="stable").head(_SPREAD).to_dict("records")
    return [
        {
            "step": row["step"],
            "parameter": html.shortened(str(row["parameter"])),
            "bad": f"{row['not_finite']} of {row['uses']}",
            "rank": row["first_rank"],
        }
        for row in rows
    ]


def _watch(run: Run) -> str:
    watch = run.findings.get("watch")
    if not watch:
        return ""
    return html.shortened(str(watch.get("sentence") or json.dumps(watch, ensure_ascii=False)))


def _ran(run: Run) -> dict[str, Any]:
    scenario = {name: _plain(value) for name, value in run.findings["scenario"].items()}
    return {
        "name": run.name,
        "versions": {str(name): str(value) for name, value in run.findings["versions"].items()},
        "scenario": {name: html.shortened(value) for name, value in scenario.items()},
    }


def _differing(ran: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options in which the runs differ; of a single run those that decide most."""
    names = list(dict.fromkeys(name for run in ran for name in run["scenario"]))
    if len(ran) == 1:
        return [name for name in ("fix", "hardware", "seed") if name in names]
    return [name for name in names if len({run["scenario"].get(name) for run in ran}) > 1]


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def files_in(folder: Path) -> list[tuple[str, str]]:
    """What lies in a report's folder, and what it is."""
    what = {
        "report.md": "the same in short, to paste into an issue",
        "findings.json": "for programs",
        "metrics.csv": "every loss",
        "metrics.parquet": "the same for pandas",
    }
    found = [(name, meaning) for name, meaning in what.items() if (folder / name).exists()]
    timelines = sorted(PurePath(one).name for one in folder.glob("timeline-*.json.gz"))
    return found + [(name, "open it in ui.perfetto.dev") for name in timelines]
