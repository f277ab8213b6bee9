"""Writes the report of a study as a folder: a page (:mod:`reports.pages.html`), text for an issue, and its data.

A study that is declared (:mod:`streamrace.studies.study`) needs no more than its results; ``catalogue_page.py``,
``releases_page.py`` and others each build a :class:`StudyReport` from theirs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict

from streamrace.reports.charts.frame import Chart
from streamrace.reports.data import frames
from streamrace.reports.data.schema import ReportError, does_not_hold
from streamrace.reports.data.stamp import stamp
from streamrace.reports.data.whole import replace_file
from streamrace.reports.pages import html, markdown
from streamrace.reports.pages.run_page import ran
from streamrace.reports.pages.words import STUDIES
from streamrace.reports.pictures.figures import png
from streamrace.studies import registry
from streamrace.studies.study import Fact, Frames
from streamrace.studies.table import Table
from streamrace.trace.untrusted import visible

FORMAT = "stream-race-study"
VERSION = 1
_LARGEST = 1e15  # of a number in a table; larger ones may overflow in computations

_FILES = (
    ("report.md", "the same in short, to paste into an issue"),
    ("findings.json", "for programs"),
    ("metrics.csv", "every row"),
    ("metrics.parquet", "the same for pandas"),
)


class StudyMetadata(BaseModel):
    """The metadata of a study. ``study``: which one; ``options``: the job's, except those that the study itself
    decides; ``hardware``: the meaning of the profile, in words.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    study: str
    command: str
    versions: dict[str, str]
    options: dict[str, Any] = {}
    hardware: str = ""


class Card(NamedTuple):
    """One item that a study examined, with its details. ``key``: its place on the page, ``#key``.

    ``mark``: its verdict in a word, in ``tone``. ``links``: addresses. ``command``: shows it again; may be empty.
    ``code``: a diff; may be empty.
    """

    key: str
    title: str
    mark: str
    tone: str
    text: str
    facts: Sequence[Fact] = ()
    links: Sequence[str] = ()
    command: str = ""
    code: str = ""


@dataclass(frozen=True)
class StudyReport:
    """The content of a study's page.

    ``verdict`` in a few words, ``sentence`` for a reader with one minute, ``tone``: good, warn or bad. ``metrics``: the
    tidy frame, a row per item that ran; ``more``: further frames for programs, by name. ``words``: names in
    :data:`streamrace.reports.pages.words.STUDIES` that the page uses; ``when``: it was written. ``cards``: on the page
    only; ``lead``: a change to make, which the page begins with, and the command that applies it; ``advice``: what else
    to do, in a sentence. Names in all of these are untrusted.
    """

    kind: str
    title: str
    verdict: str
    sentence: str
    tone: str
    facts: Sequence[Fact]
    charts: Mapping[str, Chart]
    tables: Sequence[Table]
    command: str
    versions: Mapping[str, str]
    configuration: Mapping[str, str]
    metrics: pd.DataFrame
    words: Sequence[str]
    more: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    cards: Sequence[Card] = ()
    lead: Card | None = None
    advice: str = ""
    when: str = ""


def load(folder: Path, ran: StudyMetadata) -> StudyReport:
    """Return the report of a declared study's folder. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    study = registry.load(ran.study)
    results: Frames = {}
    for name, columns in study.columns.items():
        file = folder / f"{name}.csv"
        if file.exists() or len(study.columns) == 1:
            frame = read_table(file, columns, optional=study.later)
            for column in (name for name in study.later if columns.get(name) == "str"):
                frame[column] = frame[column].astype(object).fillna("")
            try:
                results[name] = study.completed(frame)
            except ValueError as error:
                raise does_not_hold(file, str(error)) from None
    if not results:
        raise does_not_hold(folder, f"none of its tables is there ({', '.join(study.columns)})")
    options = texts(ran.options)
    conclusion = study.conclude(results, options)
    profile = options.get("hardware", "")
    hardware = ran.hardware if ran.hardware.startswith(profile) else f"{profile}: {ran.hardware}"
    first, *others = results
    return StudyReport(
        kind=ran.study,
        title=conclusion.title,
        verdict=conclusion.verdict,
        sentence=conclusion.sentence,
        tone=conclusion.tone,
        facts=[
            Fact("asked", study.question),
            *conclusion.facts,
            *([Fact("hardware profile", hardware, "hardware profile")] if ran.hardware else []),
        ],
        charts=_drawn(ran.study, results),
        tables=[table for table in study.tables(results) if table.rows],
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=results[first],
        words=study.words,
        more={name: results[name] for name in others},
    )


def _drawn(name: str, frames: Frames) -> Mapping[str, Chart]:
    """Return the pictures of a study, drawn by the module of :mod:`streamrace.reports.pictures` of its name."""
    module = f"streamrace.reports.pictures.{name}"
    charts: Mapping[str, Chart] = import_module(module).charts(frames) if find_spec(module) else {}
    return charts


def page(study: StudyReport) -> str:
    """Return the page."""
    return html.render(
        "study.html",
        study.charts,
        title=f"{study.verdict}: {study.title}",
        study=study,
        lead=study.lead,
        advice=study.advice,
        stamp=stamp(f"Study '{study.kind}'", study.configuration.get("model", ""), study.when),
        ran=ran([(study.kind, study.versions, study.configuration, {})]),
        words=STUDIES,
        explained={word: STUDIES[word] for word in study.words},
        files=[*_FILES, *((f"{name}.png", "for slides") for name in _pictures(study))],
    )


def _pictures(study: StudyReport) -> dict[str, Figure]:
    return {name: chart.figure for name, chart in study.charts.items() if isinstance(chart.figure, Figure)}


def brief(study: StudyReport) -> str:
    """Return a short report, as Markdown to paste into an issue."""
    return markdown.render(
        "study.md",
        study=study,
        tables=[table for table in study.tables if table.brief],
        command=_fenced(study.command),
    )


def findings(study: StudyReport) -> dict[str, Any]:
    """Return the verdict and the rows, for programs; null for numbers that are not finite, which JSON lacks."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "study": study.kind,
        "verdict": study.verdict,
        "tone": study.tone,
        "sentence": study.sentence,
        "command": study.command,
        "versions": dict(study.versions),
        "configuration": dict(study.configuration),
        "rows": _records(study.metrics),
        **{name: _records(frame) for name, frame in study.more.items()},
    }


def write(study: StudyReport, target: Path) -> Path:
    """Write the report into the folder ``target``; return its page. Each file is written whole or not at all.

    Raises :class:`streamrace.reports.data.loading.ReportError` if the folder cannot be written.
    """
    file = target / "index.html"
    try:
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps(findings(study), indent=2, allow_nan=False, default=str)
        html.write(f"{text}\n", target / "findings.json")
        html.write(study.metrics.to_csv(index=False, lineterminator="\n"), target / "metrics.csv")
        replace_file(
            target / "metrics.parquet",
            lambda beside: study.metrics.to_parquet(beside, engine="pyarrow", index=False),
        )
        html.write(brief(study), target / "report.md")
        for name, figure in _pictures(study).items():
            replace_file(target / f"{name}.png", partial(png, figure))
        html.write(page(study), file)
    except OSError as error:
        raise ReportError(
            f"cannot write the report into {target}: {error.strerror or error}; choose another"
        ) from error
    return file


def read_table(file: Path, columns: Mapping[str, str], *, optional: Collection[str] = ()) -> pd.DataFrame:
    """Read a study's table (see :func:`frames.read`): empty cells are missing numbers. A table without rows is refused,
    as is a number beyond the limit.
    """
    frame = frames.read(
        file, columns, optional=optional, nothing={name: "" for name, kind in columns.items() if kind == "float64"}
    )
    if frame.empty:
        raise does_not_hold(file, "it has no row")
    for name in frame.select_dtypes("float64"):
        if (np.isfinite(frame[name]) & (frame[name].abs() > _LARGEST)).any():
            raise does_not_hold(file, f"its {name} is a number that no study finds")
    return frame


def texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as texts."""
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in options.items()
    }


def _fenced(command: str) -> markdown.Ready:
    """Return a block of code that no run of backticks in it ends."""
    line = visible(html.shortened(command).replace("\n", "\\n"))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return markdown.Ready(f"{fence}\n{line}\n{fence}")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if hasattr(value, "item") else value
