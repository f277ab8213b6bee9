"""Builds the report of a race's possible cures: the diff, and all candidates with their costs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from streamrace.reports.data.fixes import DIFF, TONES, FixFile, FixRow, table
from streamrace.reports.pages.study_page import Card, StudyMetadata, StudyReport
from streamrace.studies.study import Fact
from streamrace.trace.wording import duration

_WORDS = ("race", "stream", "rank", "virtual time")


def load(folder: Path, ran: StudyMetadata) -> StudyReport:
    """Load the fixes of a folder. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    return study(FixFile.read(folder), ran, folder / DIFF)


def study(fixes: FixFile, ran: StudyMetadata, diff: Path) -> StudyReport:
    """Return the report of the results of ``streamrace fix``, which left ``diff`` if there is a row to take."""
    held = [row for row in fixes.rows if row.holds]
    facts = [
        Fact("race", f"{fixes.race.kind}: {fixes.race.first}; {fixes.race.second}", "race"),
        Fact("missing", fixes.missing),
        Fact("scope", "this program with these arguments, and the branches that it took"),
        Fact("in the trace", f"{len(held)} of {len(fixes.rows)} candidates remove it and add none"),
        Fact(
            "costs",
            f"virtual time, of the {duration(fixes.end_ns)} that the run took"
            if fixes.end_ns is not None
            else f"not known: {fixes.no_schedule}",
            "virtual time",
        ),
    ]
    facts += [Fact("live", f"nothing was tried: {fixes.untried}")] if fixes.untried else []
    chosen = fixes.taken
    return StudyReport(
        kind="fix",
        title=f"race {fixes.number} of {fixes.run}",
        verdict="tried: clean" if chosen else "no diff to take" if held else "no fix was found",
        sentence=fixes.sentence(),
        tone="good" if chosen else "warn" if held else "bad",
        facts=facts,
        charts={},
        tables=[table(fixes.rows)] if fixes.rows else [],
        cards=[
            _card(number, row) for number, row in enumerate(fixes.rows, 1) if row.diff and row.holds and row != chosen
        ],
        lead=_card(0, chosen)._replace(title=diff.name, command=f"patch -p1 < {shlex.quote(str(diff))}")
        if chosen
        else None,
        command=ran.command,
        versions=fixes.versions,
        configuration={},
        metrics=tidy(fixes.rows),
        words=_WORDS,
    )


def tidy(rows: Sequence[FixRow]) -> pd.DataFrame:
    """Return a row for each candidate."""
    columns = list(FixRow.model_fields)
    return pd.DataFrame([row.model_dump() for row in rows], columns=columns).astype(
        {"longer_ns": "Int64", "live_longer_ns": "Int64"}
    )


def _card(number: int, row: FixRow) -> Card:
    facts = [Fact("costs", row.cost, "virtual time"), *(Fact("remark", remark) for remark in row.remarks)]
    mark = "tried: clean" if row.live == "clean" else row.live
    return Card(f"fix-{number}", row.how, mark, TONES[row.live], row.words, facts, code=row.diff)
