"""Builds the report of the changed assumptions: which of them decides whether hpZ's race shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.reports.data.frames import each
from streamrace.reports.data.schema import does_not_hold
from streamrace.reports.pages.study_page import Study, StudyMetadata, read_table, said_of_exercise, texts, unexercised
from streamrace.reports.pages.summary import Fact
from streamrace.reports.pictures.why import slacks
from streamrace.reports.table import Cell, Column, Table
from streamrace.reports.text import slack
from streamrace.studies.why import AFFECTED, BASE

FILE = "why.csv"
COLUMNS = {
    "release": "str",
    "assumption": "str",
    "value": "str",
    "step_s": "float64",
    "pairs": "int64",
    "manifested": "int64",
    "harmful": "int64",
    "reversed": "int64",
    "within_forward": "int64",
    "slack_ms": "float64",
    "worst_ms": "float64",
    "parameters": "str",
    "from_gbits": "float64",
    "fits": "bool",
    "unexercised": "str",
    "verdict": "bool",
    "flips": "bool",
}
_OTHER = ("release", "another release's way", "network", "timing")  # not settings of the same release
_WORDS = (
    "race", "latent", "manifested", "harmful", "slack", "unordered pairs", "network", "micro-batch", "hpZ", "phase",
    "secondary partition", "all-gather", "release", "virtual time", "hardware profile", "stream", "rank",
)  # fmt: skip


def load(folder: Path, ran: StudyMetadata) -> Study:
    """Load the study of a folder. Raises :class:`streamrace.reports.data.loading.ReportError`."""
    frame = said_of_exercise(read_table(folder / FILE, COLUMNS, optional=("unexercised",)))
    if not ((frame.assumption == BASE) & (frame.release == AFFECTED)).any():
        raise does_not_hold(folder / FILE, f"it has no row of DeepSpeed {AFFECTED} in {BASE}")
    return study(frame, ran)


def study(frame: pd.DataFrame, ran: StudyMetadata) -> Study:
    """Return the report of the frame of :func:`streamrace.studies.why.why`."""
    options = texts(ran.options)
    base = next(each(frame[(frame.assumption == BASE) & (frame.release == AFFECTED)]))
    changed = frame[frame.assumption != BASE]
    releases = [name for name in (AFFECTED, PINNED) if name in set(frame.release[frame.assumption == BASE])]
    facts = [
        Fact("asked", "Which single assumption decides whether the race shows?"),
        Fact("the setting", f"{_job(options)}; DeepSpeed {AFFECTED} as released"),
        Fact("there", f"{base.reversed} of {base.harmful} harmful pairs are reversed: {base.parameters}", "harmful"),
        *(Fact(f"decides, {release}", _deciding(frame, release) or "none of them", "release") for release in releases),
        *(Fact(f"matters, {release}", _range(frame, release), "network") for release in releases),
    ]
    if ran.hardware:
        facts.append(Fact("hardware profile", f"{options.get('hardware', '')}: {ran.hardware}", "hardware profile"))
    flips = changed[(changed.release == AFFECTED) & changed.flips]
    shows = "shows" if base.verdict else "does not show"
    partly, told = unexercised(frame[~frame.verdict])
    return Study(
        kind="why",
        title="which assumption decides whether the race shows",
        verdict=f"{len(flips)} of {int((changed.release == AFFECTED).sum())} changes decide",
        sentence=f"In the setting in which users met the race it {shows} with DeepSpeed {AFFECTED}; of "
        f"{int((changed.release == AFFECTED).sum())} changes of one assumption {len(flips)} turn that round."
        + (f" In {partly} of the settings that do not show it not all was exercised: {told}." if partly else ""),
        tone="bad" if base.verdict else "good",
        facts=facts,
        charts={"why": slacks(frame, releases)},
        tables=[*(_table(frame, release) for release in releases), _releases(frame)],
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=frame,
        words=_WORDS,
    )


def _job(options: Mapping[str, str]) -> str:
    get = options.get
    return (
        f"{get('model', 'a model')}, {get('nodes', '?')} nodes of {get('gpus', '?')} GPUs, hpZ {get('hpz', '?')}, "
        f"micro-batch {get('micro_batch', '?')}, sequence {get('sequence', '?')}, gradient checkpointing, "
        f"{get('loop')} loop"
    )


def _deciding(frame: pd.DataFrame, release: str) -> str:
    rows = frame[(frame.release == release) & (frame.assumption != BASE) & frame.flips]
    return "; ".join(f"{one.assumption}: {one.value}" for one in each(rows))


def _range(frame: pd.DataFrame, release: str) -> str:
    """Describe from which bandwidth on the synchronisation matters, over all changes that keep the release."""
    rows = frame[(frame.release == release) & ~frame.assumption.isin(_OTHER)]
    always = int((rows.from_gbits == 0).sum())
    between = rows.from_gbits[rows.from_gbits > 0]
    told = [f"at every bandwidth in {always} of {len(rows)} settings"] if always else []
    if len(between):
        told.append(f"from {between.min():.0f} … {between.max():.0f} Gbit/s on in {len(between)}")
    if never := int(rows.from_gbits.isna().sum()):
        told.append(f"at none up to 400 Gbit/s in {never}")
    return ", ".join(told)


def _table(frame: pd.DataFrame, release: str) -> Table:
    rows = [
        [
            one.assumption,
            one.value,
            _reversed(one),
            slack(one.slack_ms * 1000),
            one.parameters,
            _from(one.from_gbits),
            Cell("yes", "warn") if one.flips else "",
        ]
        for one in each(frame[frame.release == release])
    ]
    columns = ["assumption", "changed to", "harmful pairs reversed", "closest", "parameters",
               Column("reversed from, Gbit/s", right=True), "decides"]  # fmt: skip
    title = f"DeepSpeed {release}, one assumption changed at a time"
    note = "A harmful pair: the other order reads another value. 'Decides': the verdict is not that of the setting."
    return Table(title, columns, rows, note)


def _releases(frame: pd.DataFrame) -> Table:
    rows = [
        [one.value, _reversed(one),
         slack(one.slack_ms * 1000), one.parameters, f"{one.manifested} of {one.pairs}", one.step_s]
        for one in each(frame[frame.assumption.isin([BASE, "release"])].sort_values("release", kind="stable"))
    ]  # fmt: skip
    columns = ["release", "harmful pairs reversed", "closest", "parameters", "all pairs", Column("step", "{:.4g} s")]
    return Table("The setting, by release", columns, rows, "All pairs: also those that copy what is there already.")


def _reversed(row: Any) -> Cell:
    """Return the count of reversed pairs; zero is a warning if not all was exercised."""
    if not row.reversed and row.unexercised:
        return Cell(f"0 of {row.harmful}, not all exercised", "warn")
    return Cell(f"{row.reversed} of {row.harmful}", "bad" if row.reversed else "good")


def _from(gbits: Any) -> str:
    if gbits == 0:
        return "every"
    return "none" if math.isnan(gbits) else f"{gbits:.0f}"
