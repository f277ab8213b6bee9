"""A report of one run, or of several side by side, as one page of HTML (:mod:`reports.pages.html`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from reports.charts import checksum_map, curves, edge, moment_chart
from reports.charts.frame import Chart
from reports.data.campaigns import Campaign
from reports.data.loading import Run, Source
from reports.data.matrix import Tried, matrix, timing_of
from reports.pages import html, summary
from reports.pages.words import VERDICTS, WORDS
from reports.timelines import moment
from simgpu.trace import file_of

_SPREAD = 12  # rows of what spread
_OURS, _DEEPSPEED = ("sharding", "rings", "without"), ("fix",)  # options that say how training is ordered
_NAMES = 6  # names of memory in the open
_FILES = {
    "report.md": "the same in short, to paste into an issue",
    "findings.json": "for programs",
    "metrics.csv": "the numbers",
    "metrics.parquet": "the same for pandas",
}
_TONES = {"clean": "good", "hidden": "warn", "fragile": "warn", "unknown": "warn"}


def page(runs: Sequence[Run], files: Sequence[tuple[str, str]] = (), campaigns: Sequence[Campaign] = ()) -> str:
    """The page as text. ``files``: what lies beside it, and what that is; ``campaigns``: for the matrix of fixes.

    The runs are comparable (:func:`reports.data.loading.comparable`); what is told in detail is the gravest of them.
    """
    told = summary.worst(runs)
    verdict = summary.verdict(told)
    all_ran = [
        ran(run.name, run.findings["versions"], run.findings["scenario"], run.findings["profile"]) for run in runs
    ]
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
        races=[race(one, told.sources) for one in told.findings["races"]],
        checked=_checked(told),
        compared=bool(len(told.checksums)),
        spread=_spread(told),
        watch=_watch(told),
        replay=summary.replay(told),
        ran=all_ran,
        packages=packages(all_ran),
        differing=differing(all_ran),
        costs=summary.costs(runs),
        matrix=matrix([*map(_tried, runs), *(one.tried for one in campaigns)]),
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


def race(race: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    """A race for the template."""
    names = sorted({f"{name['kind']} {name['name']}" for name in race["names"]})
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return {
        "kind": race["kind"],
        "missing": html.shortened(f"Missing: {race['missing_wait']}"),
        "often": summary.often(race),
        "edge": Markup(edge.svg(race)),
        "sides": [_side(word, race[word], sources) for word in ("first", "second")],
        "memory": html.shortened(", ".join(names[:_NAMES]) + more or "unnamed"),
    }


def _checked(run: Run) -> dict[str, Any] | None:
    """What a clean verdict rests on; of a program of the user's own also what it knows nothing of."""
    told = run.findings.get("checked") or run.findings.get("rests")
    if told is None:
        return None
    return {
        "held": [
            {
                "sentence": html.shortened(_capital(one["sentence"])),
                "races": [race(pair, run.sources) for pair in one["races"]],
            }
            for one in told["held"]
        ],
        "unexamined": told["unexamined"],
        "unexercised": [html.shortened(one) for one in told["unexercised"]],
        "unseen": [html.shortened(one) for one in told.get("unseen", [])],
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _side(word: str, side: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Any]:
    stack = [html.shortened(f"{frame['file']}:{frame['line']} {frame['function']}") for frame in side["stack"]]
    lines: list[tuple[int, str, bool]] = []
    if side["stack"]:
        frame = side["stack"][0]
        source = sources.get(f"{frame['file']}:{frame['line']}")
        if source is not None:
            text = dedent("\n".join(source.text)).split("\n")  # the indentation that all share says nothing
            lines = [(number, line, number == source.line) for number, line in enumerate(text, source.first)]
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


def _tried(run: Run) -> Tried:
    findings = run.findings
    diverged = bool((findings.get("divergence") or {}).get("parameter") or findings.get("diverged"))
    return Tried(summary.fix(run), timing_of(findings["scenario"]), int(diverged), 1)


def ran(
    name: str,
    versions: Mapping[str, Any],
    scenario: Mapping[str, Any],
    profile: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """What ran, for the template. ``profile``: of the hardware, where it was kept."""
    return {
        "name": name,
        "versions": {one: html.shortened(str(value)) for one, value in versions.items()},
        "scenario": {one: html.shortened(_plain(value)) for one, value in scenario.items()},
        "profile": {one: html.shortened(_plain(value)) for one, value in profile.items()},
    }


def packages(ran: Sequence[Mapping[str, Any]]) -> list[str]:
    """All packages whose version any of them tells."""
    return list(dict.fromkeys(name for run in ran for name in run["versions"]))


def differing(ran: Sequence[Mapping[str, Any]]) -> list[str]:
    """The options in which the runs differ; of a single run those that decide most."""
    names = list(dict.fromkeys(name for run in ran for name in run["scenario"]))
    if len(ran) == 1:
        ours = ran[0]["scenario"].get("sharding")
        return [name for name in (*(_OURS if ours else _DEEPSPEED), "hardware", "seed") if name in names]
    return [name for name in names if len({run["scenario"].get(name) for run in ran}) > 1]


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def told_of(files: Sequence[Path]) -> list[tuple[str, str]]:
    """The names of files that were written beside a page, each with what it is."""
    return [(file.name, _FILES.get(file.name, "a timeline: open it in ui.perfetto.dev")) for file in files]
