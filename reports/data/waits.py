"""What ``streamrace waits`` found, as data: ``waits.json``, a row for each line that waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from streamrace.detectors.confidence.removal import Load
from streamrace.detectors.order.races import Race, describe, site
from streamrace.detectors.streams import stream_named
from streamrace.reports.data.schema import checked, read_json
from streamrace.reports.table import Cell, Table
from streamrace.reports.text import duration

FILE = "waits.json"
FORMAT, VERSION = "stream-race-waits", 1
TONES = {"carries load": "bad", "fragile cover": "warn", "redundant": "good", "unknown": "soft"}
Agreement = Literal["agrees", "disagrees", "not run"]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class RacePair(_Part):
    """A race by its two accesses, as a line each. ``times``: how often it occurs."""

    kind: str
    first: str
    second: str
    times: Count

    @classmethod
    def of(cls, race: Race) -> RacePair:
        return cls(kind=race.kind, first=_access(race, 0), second=_access(race, 1), times=race.occurrences)


def _access(race: Race, at: int) -> str:
    side = (race.first, race.second)[at]
    got = site(side.allocated or ())
    where = f", in memory got at {got.file}:{got.line}" if got else ""
    return f"{side.access} by {describe(side.kernel, side.stack)} on {stream_named(side.stream)}{where}"


class WaitRow(_Part):
    """A line's waits. ``how``: which call it is; ``count``: how often it was made on all ranks, ``held_ns``: what they
    cost (:mod:`streamrace.detectors.confidence.delays`).

    ``races``: those that are there without it. ``pair``: what it would order if it were alone, and ``chain``, what
    orders that instead, only ``by_chance`` where no wait for order would be left. ``why``: a sentence without a full
    stop where there is neither. ``live``: what a live run without it said of this verdict; ``says``: in words.
    ``harm``, ``token``, ``command``: of a witness of its race.
    """

    how: str
    file: str
    line: Count
    function: str
    verdict: Load
    count: Count
    held_ns: Count
    races: list[RacePair] = []
    pair: RacePair | None = None
    chain: list[str] = []
    by_chance: bool = False
    why: str = ""
    live: Agreement = "not run"
    says: str = ""
    harm: str = ""
    token: str = ""
    command: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "no line is known"

    def instead(self) -> str:
        """What is there without it, or orders the same: a sentence without a full stop."""
        if self.races:
            more = len(self.races) - 1
            one = self.races[0]
            together = f"{self.why}: " if self.why else ""
            return f"{together}{one.kind}: {one.first}; {one.second}{f' (and {more} more)' if more else ''}"
        instead = f"ordered by {', then '.join(self.chain)}" if self.chain else self.why
        return f"{instead}; only by chance: a read, a copy or a timer" if self.by_chance else instead


class WaitsFile(_Part):
    """``scope``: of what all this is said. ``together``: the places of the redundant ones that can go at once, and what
    a live run without them all said. ``others``: waits that no line asks for. ``base``: how many races the program has.
    """

    format: str = FORMAT
    version: int = VERSION
    scope: str
    asked: dict[str, object]
    versions: dict[str, str]
    base: Count
    others: Count
    waits: list[WaitRow]
    together: list[str]
    together_live: Agreement = "not run"
    together_says: str = ""

    @property
    def disagree(self) -> int:
        """How many verdicts a live run did not bear out."""
        return sum(one.live == "disagrees" for one in self.waits) + (self.together_live == "disagrees")

    def sentence(self) -> str:
        """What came out, in one."""
        counted = ", ".join(f"{count} {load}" for load in get_args(Load) if (count := self.of(load)))
        ran = [one for one in self.waits if one.live != "not run"]
        agreed = sum(one.live == "agrees" for one in ran)
        lines = f"{len(self.waits)} line{'' if len(self.waits) == 1 else 's'} that wait"
        return f"{lines}: {counted or 'none'}. Live runs bear out {agreed} of the {len(ran)} that were tried."

    def of(self, load: str) -> int:
        return sum(one.verdict == load for one in self.waits)


def write(found: WaitsFile, folder: Path) -> Path:
    """Write ``waits.json``, whole or not at all. Raises OSError."""
    file = folder / FILE
    beside = file.with_name(f".{FILE}.part")
    beside.write_text(json.dumps(found.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(file)
    return file


def read(folder: Path) -> WaitsFile:
    """Raises :class:`streamrace.reports.data.schema.ReportError`."""
    file = folder / FILE
    return checked(WaitsFile, file, read_json(file), named=FORMAT, version=VERSION)


def pairs(races: Sequence[Race]) -> list[RacePair]:
    return [RacePair.of(one) for one in races]


def said(found: WaitsFile) -> str:
    """What a live run without all that can go said of it."""
    says = found.together_says or "That is by the trace alone"
    return f"{says[0].upper()}{says[1:]}."


def table(rows: Sequence[WaitRow]) -> Table:
    """A row for each line."""
    return Table(
        "Each line's waits, taken away alone",
        ["line", "verdict", "held up", "without it"],
        [
            [
                Cell(row.place, "", f"{row.how}, {row.count} times"),
                Cell(row.verdict, TONES[row.verdict], _live(row)),
                duration(row.held_ns),
                row.instead(),
            ]
            for row in rows
        ],
    )


def _live(row: WaitRow) -> str:
    return {"agrees": "and live", "disagrees": "NOT live"}.get(row.live, "by the trace")
