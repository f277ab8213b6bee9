"""Builds the report of a program's waits, the waits of each line removed alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from streamrace.detectors.confidence.removal import CARRIES, FRAGILE, REDUNDANT, UNKNOWN
from streamrace.reports.data.waits import TONES, WaitRow, WaitsFile, basis, table
from streamrace.reports.pages.study_page import Card, StudyMetadata, StudyReport
from streamrace.studies.study import Fact
from streamrace.trace import wording
from streamrace.trace.wording import duration

_WORDS = (
    "carries load",
    "fragile cover",
    "redundant",
    "delay",
    "race",
    "witness",
    "token",
    "stream",
    "rank",
    "virtual time",
)


def load(folder: Path, ran: StudyMetadata) -> StudyReport:
    """Load the waits of a folder. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    return study(WaitsFile.read(folder), ran)


def study(waits: WaitsFile, ran: StudyMetadata) -> StudyReport:
    """Return the report of the results of ``streamrace waits``."""
    rows = waits.waits
    carrying, redundant = waits.of(CARRIES), waits.of(REDUNDANT)
    tone = "bad" if waits.disagree else "warn" if waits.of(FRAGILE) or waits.of(UNKNOWN) else "good"
    facts = [
        Fact("scope", waits.scope),
        Fact("delay", "how much earlier its stream or the host could continue without it alone", "delay"),
        Fact(
            "not taken away",
            f"{wording.count(waits.others, 'wait')} of collectives and autograd's engine themselves",
        ),
    ]
    return StudyReport(
        kind="waits",
        title=f"{wording.count(len(rows), 'line')} that wait",
        verdict=f"{wording.count(carrying, 'carries', 'carry')} load, {redundant} redundant",
        sentence=waits.sentence(),
        tone=tone,
        facts=facts,
        charts={},
        tables=[table(rows)] if rows else [],
        cards=[_card(number, row) for number, row in enumerate(rows, 1)],
        command=ran.command,
        versions=waits.versions,
        configuration={},
        metrics=tidy(rows),
        words=_WORDS,
        advice=f"Can be removed together: {', '.join(waits.together)}. {basis(waits)}"
        if waits.together
        else "None of them can be removed.",
    )


def tidy(rows: Sequence[WaitRow]) -> pd.DataFrame:
    """Return a row for each line."""
    columns = [
        "how", "file", "line", "function", "verdict", "count", "held_ns", "races", "instead", "live", "says", "harm",
        "token", "command",
    ]  # fmt: skip
    return pd.DataFrame(
        [
            {
                **row.model_dump(exclude={"races", "pair", "chain", "why"}),
                "races": len(row.races),
                "instead": row.instead(),
            }
            for row in rows
        ],
        columns=columns,
    )


def _card(number: int, row: WaitRow) -> Card:
    facts = [Fact("call", f"{row.how} in {row.function}"), Fact("made", f"{row.count} times on all ranks")]
    facts.append(Fact("delay", duration(row.held_ns), "delay"))
    for race in row.races:
        facts.append(Fact(race.kind, f"{race.first}; {race.second}; {race.times} times", "race"))
    if row.pair:
        facts.append(Fact("alone it would order", f"{row.pair.first}; {row.pair.second}"))
    facts += [Fact("instead", link) for link in row.chain]
    facts += [Fact("why", row.why)] if row.why else []
    facts += [Fact("live", row.says)] if row.says else []
    facts += [Fact("witness", row.token, "witness")] if row.token else []
    key = f"wait-{number}"
    return Card(key, row.place, row.verdict, TONES[row.verdict], row.instead(), facts, (), row.command)
