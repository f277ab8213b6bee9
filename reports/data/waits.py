"""Holds the result of ``streamrace waits``: ``waits.json``, a row per line that waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from streamrace.detectors.confidence.removal import Load
from streamrace.detectors.order.races import Race, site
from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.studies.table import Cell, Table
from streamrace.trace import wording
from streamrace.trace.wording import duration

TONES = {"carries load": "bad", "fragile cover": "warn", "redundant": "good", "unknown": "soft"}
Agreement = Literal["agrees", "disagrees", "not run"]


class RacePair(JsonPart):
    """A race by its two accesses, as a line each. ``times``: count of its occurrences."""

    kind: str
    first: str
    second: str
    times: int

    @classmethod
    def of(cls, race: Race) -> RacePair:
        return cls(kind=race.kind, first=_access(race, 0), second=_access(race, 1), times=race.occurrences)


def _access(race: Race, at: int) -> str:
    side = (race.first, race.second)[at]
    got = site(side.allocated or ())
    where = f", in memory got at {wording.line(got.file, got.line, path=True)}" if got else ""
    return f"{side}{where}"


class WaitRow(JsonPart):
    """A line's waits. ``how``: the kind of call; ``count``: number of calls on all ranks, ``held_ns``: their cost
    (:mod:`streamrace.detectors.confidence.delays`).

    ``races``: those that appear without the line. ``pair``: the pair that it would order if it were alone, and
    ``chain``, the edges that order the pair instead; ``by_chance``: without the line, only incidental waits keep the
    order. ``why``: the reason of a verdict that these do not explain, a sentence without a full stop. ``live``: whether
    a live run without the line agrees; ``says``: in words. ``harm``, ``token``, ``command``: of a witness of its race.
    """

    how: str
    file: str
    line: int
    function: str
    verdict: Load
    count: int
    held_ns: int
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
        return wording.line(self.file, self.line, path=True) if self.file else "no line is known"

    def instead(self) -> str:
        """Return the race without the wait, or the order that remains instead: a sentence without a full stop."""
        if self.races:
            more = len(self.races) - 1
            race = self.races[0]
            together = f"{self.why}: " if self.why else ""
            return f"{together}{race.kind}: {race.first}; {race.second}{f' (and {more} more)' if more else ''}"
        instead = f"ordered by {', then '.join(self.chain)}" if self.chain else self.why
        return f"{instead}; only by chance: a read, a copy or a timer" if self.by_chance else instead


class WaitsFile(JsonFile):
    """``waits.json``. ``scope``: to what all results apply. ``together``: places of redundant waits that can be removed
    at once, with a live run's result. ``others``: waits that no line requests. ``base``: the program's number of races.
    """

    NAME = "waits.json"
    format: str = "stream-race-waits"
    scope: str
    asked: dict[str, object]
    versions: dict[str, str]
    base: int
    others: int
    waits: list[WaitRow]
    together: list[str]
    together_live: Agreement = "not run"
    together_says: str = ""

    @property
    def disagree(self) -> int:
        """The number of verdicts that a live run did not confirm."""
        return sum(wait.live == "disagrees" for wait in self.waits) + (self.together_live == "disagrees")

    def sentence(self) -> str:
        """Return the result in one sentence."""
        counted = ", ".join(f"{count} {load}" for load in get_args(Load) if (count := self.of(load)))
        ran = [wait for wait in self.waits if wait.live != "not run"]
        agreed = sum(wait.live == "agrees" for wait in ran)
        lines = f"{wording.count(len(self.waits), 'line')} that wait"
        return f"{lines}: {counted or 'none'}. Live runs confirm {agreed} of the {len(ran)} that were tried."

    def of(self, load: str) -> int:
        return sum(wait.verdict == load for wait in self.waits)


def pairs(races: Sequence[Race]) -> list[RacePair]:
    return [RacePair.of(race) for race in races]


def basis(waits: WaitsFile) -> str:
    """Return the result of a live run without all the waits that can be removed together."""
    says = waits.together_says or "That is by the trace alone"
    return f"{wording.capital(says)}."


def table(rows: Sequence[WaitRow]) -> Table:
    """Return a table with a row per line."""
    return Table(
        "Each line's waits, taken away alone",
        ["line", "verdict", "delay", "without it"],
        [
            [
                Cell(row.place, "", f"{row.how}, {wording.times(row.count)}"),
                Cell(row.verdict, TONES[row.verdict], _live(row)),
                duration(row.held_ns),
                row.instead(),
            ]
            for row in rows
        ],
    )


def _live(row: WaitRow) -> str:
    return {"agrees": "and live", "disagrees": "NOT live"}.get(row.live, "by the trace")
