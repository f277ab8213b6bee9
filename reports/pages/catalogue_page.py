"""Builds the report of the catalogue: each known stream bug in an affected release and in a fixed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from streamrace.reports.data.catalogue import CatalogueFile, EntryRow, RanSide, cell, short
from streamrace.reports.pages.study_page import Card, StudyMetadata, StudyReport
from streamrace.scenarios.catalogue.entry import CONTROLS, HANGS
from streamrace.studies.study import Fact
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace import wording

SIDES = ("affected", "fixed")
_KINDS = {
    "race": "race", "open": "race, open", "hang": "hang", "may-hang": "may hang",
    "stale": "control: stale", "arithmetic": "control: arithmetic",
    "bounds": "control: bounds", "uninitialised": "control: uninitialised",
    "graph-memory": "control: graph memory", "not-shown": "not shown",
}  # fmt: skip
_WORDS = (
    "race",
    "witness",
    "harmful",
    "hang",
    "control",
    "open",
    "stale",
    "token",
    "release",
    "stream",
    "rank",
    "virtual time",
)


def load(folder: Path, ran: StudyMetadata) -> StudyReport:
    """Load the catalogue of a folder. Raises :class:`streamrace.reports.data.schema.ReportError`."""
    return study(CatalogueFile.read(folder), ran)


def study(catalogue: CatalogueFile, ran: StudyMetadata) -> StudyReport:
    """Return the report of the results of ``streamrace catalogue``."""
    rows = catalogue.entries
    verdict, tone, sentence = judged(rows)
    libraries = Counter(row.library for row in rows)
    facts = [
        Fact("asked", "Which known stream bugs does the tool find, and tell from what only looks like one?"),
        Fact("entries", ", ".join(f"{library} {count}" for library, count in libraries.items())),
        Fact("each", "two releases as they were released, through the same program, on simulated GPUs", "release"),
    ]
    if open_ := [row.id for row in rows if row.kind == "open"]:
        facts.append(Fact("open", f"{', '.join(open_)}: in the newest release that was tried"))
    if missing := [row.id for row in rows if not row.shown]:
        facts.append(Fact("not shown", ", ".join(missing)))
    return StudyReport(
        kind="catalogue",
        title=wording.count(len(rows), "known stream bug"),
        verdict=verdict,
        sentence=sentence,
        tone=tone,
        facts=facts,
        charts={},
        tables=[table(rows), *_missing(rows)],
        cards=[_card(row) for row in rows],
        command=ran.command,
        versions=catalogue.versions,
        configuration={},
        metrics=tidy(rows),
        words=_WORDS,
    )


def judged(rows: Sequence[EntryRow]) -> tuple[str, str, str]:
    """Return the verdict in few words, its tone, and a sentence for a reader with one minute."""
    count = Counter(row.kind for row in rows)
    races = [row for row in rows if row.race]
    harmful = sum(bool(row.affected and row.affected.harm == "harmful") for row in races)
    hangs, controls = (sum(count[kind] for kind in kinds) for kinds in (HANGS, CONTROLS))
    wrong = [row for row in rows if row.differs]
    parts = []
    if races:
        parts.append(
            f"{wording.count(len(races), 'race')}, {harmful} with a witness that changes what the program computes"
        )
    if hangs:
        parts.append(f"{wording.count(hangs, 'hang')}, which took place or may on other hardware")
    if controls:
        parts.append(f"{wording.count(controls, 'bug')} with the same symptom that are no races")
    if count["not-shown"]:
        parts.append(f"{count['not-shown']} not shown, with what was tried")
    summary = f"{len(rows)} entries: {'; '.join(parts)}" if parts else "no entry"
    if wrong:
        names = ", ".join(row.id for row in wrong)
        return f"{len(wrong)} not as expected", "bad", f"{summary}. Not as expected: {names}."
    return "as expected", "good", f"{summary}. Each is reported as what it is, and each fixed release is clean."


def table(rows: Sequence[EntryRow]) -> Table:
    """Return the table of the entries that ran, with both sides."""
    ran = [(row, row.affected) for row in rows if row.affected]
    fixes = any(row.cost is not None for row, _ in ran)
    columns = ["id", "affected", "fixed", "kind", "both lines, or the evidence", "witness", Column("time", "{:.2f} ms")]
    cells = [
        [
            Cell(row.id, "", row.library),
            cell(affected),
            cell(row.fixed),
            Cell(_KINDS[row.kind], "bad" if row.differs else "", "NOT AS EXPECTED" if row.differs else ""),
            "\n".join(map(short, affected.lines)) or affected.evidence or affected.failure,
            Cell(affected.harm, "bad" if affected.harm == "harmful" else "soft", affected.token),
            affected.virtual_ns / 1e6,
            *([row.cost] if fixes else []),
        ]
        for row, affected in ran
    ]
    return Table("The catalogue", [*columns, *([Column("the fix costs", "{:+.1%}")] if fixes else [])], cells)


def tidy(rows: Sequence[EntryRow]) -> pd.DataFrame:
    """Return a row for each entry and side."""
    return pd.DataFrame(
        [
            {
                "id": row.id,
                "library": row.library,
                "title": row.title,
                "kind": row.kind,
                "known": row.known,
                "mechanism": row.mechanism,
                "tried": row.tried,
                "program": row.program,
                "cost": row.cost,
                "side": name,
                **(side or RanSide(ran="", verdict="", sentence="")).model_dump(exclude={"lines"}),
                "lines": " | ".join(side.lines) if side else "",
                "differs": "; ".join(row.differs),
            }
            for row in rows
            for name, side in zip(SIDES, (row.affected, row.fixed), strict=True)
        ]
    )


def _missing(rows: Sequence[EntryRow]) -> list[Table]:
    cells = [[row.id, row.title, row.tried] for row in rows if not row.shown]
    return [Table("Not shown", ["id", "bug", "what was tried"], cells)] if cells else []


def _card(row: EntryRow) -> Card:
    facts = [Fact("known in", row.known)]
    for name, side in zip(SIDES, (row.affected, row.fixed), strict=True):
        if side:
            facts.append(Fact(name, f"{side.ran}: {side.failure or side.sentence}"))
    command = ""
    if row.affected:
        facts += [Fact(word, line) for word, line in zip(("first", "second"), row.affected.lines, strict=False)]
        facts += [Fact("evidence", row.affected.evidence)] if row.affected.evidence else []
        if row.affected.harm:
            facts.append(Fact("witness", f"{row.affected.harm}: {row.affected.token}", "witness"))
        command = row.affected.command
    if row.cost is not None:
        facts.append(Fact("the fix costs", f"{row.cost:+.1%} of virtual time", "virtual time"))
    facts += [Fact("tried", row.tried)] if row.tried else []
    facts += [Fact("not as expected", difference) for difference in row.differs]
    facts.append(Fact("program", row.program))
    mark = row.affected.verdict if row.affected else "not shown"
    tone = cell(row.affected).tone or "soft"
    return Card(row.id, f"{row.id}: {row.title}", mark, tone, row.mechanism, facts, row.threads, command)
