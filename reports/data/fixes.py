"""Holds the result of ``streamrace fix``: ``fix.json``, a row per candidate, and ``fix.diff``, the chosen change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.reports.data.waits import RacePair
from streamrace.reports.data.whole import put
from streamrace.studies.table import Cell, Table
from streamrace.trace import wording
from streamrace.trace.wording import duration

DIFF = "fix.diff"
Live = Literal["clean", "race", "fails", "unknown", "not tried"]
"""Result of a live run with the changed lines: no race; this race or another; the run failed; no verdict; not run."""

TONES = {"clean": "good", "race": "bad", "fails": "bad", "unknown": "warn", "not tried": "soft"}
_NOT = {"race": "tried: NOT", "fails": "tried: it fails", "unknown": "tried: unknown", "not tried": "by the trace"}


class FixRow(JsonPart):
    """A candidate. ``words``: its description; ``supposes``: an assumption that no trace can confirm.

    ``holds``: as an edge in the trace it removes the race and adds none; ``why`` not, if it does not. ``longer_ns``: by
    how much the run then ends later. ``more``: count of further races removed; ``left``: of
    races that lack the same wait and remain. ``by_chance``: sufficient only with
    waits that exist for another reason; ``this_owner``: only for the owner that got the memory in this run.
    ``unwritten``: why no ``diff`` exists. ``live``: the result of a live run, ``says`` in words, ``live_longer_ns``: by
    how much that run ended later.
    """

    how: str
    words: str
    holds: bool
    why: str = ""
    supposes: str = ""
    longer_ns: int | None = None
    more: int = 0
    left: int = 0
    by_chance: bool = False
    this_owner: bool = False
    diff: str = ""
    unwritten: str = ""
    live: Live = "not tried"
    says: str = ""
    live_longer_ns: int | None = None

    @property
    def cost(self) -> str:
        """The cost in virtual time, for a person."""
        if self.longer_ns is None:
            return "not known"
        return ("-" if self.longer_ns < 0 else "") + duration(abs(self.longer_ns)) if self.longer_ns else "nothing"

    @property
    def limits(self) -> list[str]:
        """The reasons why the candidate is no complete cure, as ends of sentences."""
        limits = ["enough only with reads, copies or timers that happen to wait, too"] if self.by_chance else []
        return limits + (["enough only for the one who got the memory in this run"] if self.this_owner else [])

    @property
    def remarks(self) -> list[str]:
        """Remarks on the candidate, sentences without a full stop."""
        remarks = [f"supposes {self.supposes}", *self.limits] if self.supposes else self.limits
        remarks += [f"{wording.count(self.more, 'more race')} gone with it"] if self.holds and self.more else []
        left = f"{wording.count(self.left, 'race')} that {wording.plural_of(self.left, 'lacks', 'lack')} the same wait"
        remarks += [f"{left} {wording.plural_of(self.left, 'remains', 'remain')}"] if self.holds and self.left else []
        remarks += [self.why] if self.why else []
        remarks += [f"no diff: {self.unwritten}"] if self.unwritten else []
        return remarks + ([self.says] if self.says else [])


class FixFile(JsonFile):
    """``fix.json``, of race ``number`` of the run ``run``. ``rows``: the best first. ``best``: the row to take, whose
    live run was clean; None: none qualifies. ``no_schedule``: why no cost is known. ``untried``: why nothing was tried
    live.
    """

    NAME = "fix.json"
    format: str = "stream-race-fix"
    run: str
    number: int
    race: RacePair
    missing: str
    asked: dict[str, object]
    versions: dict[str, str]
    end_ns: int | None = None
    no_schedule: str = ""
    untried: str = ""
    rows: list[FixRow]
    best: int | None = None

    @property
    def taken(self) -> FixRow | None:
        """The row to take."""
        return self.rows[self.best] if self.best is not None and self.best < len(self.rows) else None

    @property
    def host_ns(self) -> int | None:
        """The cost of the cheapest host synchronisation that holds in the trace."""
        return min(
            (row.longer_ns for row in self.rows if row.holds and on_host(row) and row.longer_ns is not None),
            default=None,
        )

    def write(self, folder: Path) -> Path:
        """Write ``fix.json``, and ``fix.diff`` if a row is to be taken. Raises OSError."""
        if self.taken is not None:
            put(folder / DIFF, self.taken.diff)
        return super().write(folder)

    def sentence(self) -> str:
        """Return the result in one sentence."""
        held = [row for row in self.rows if row.holds]
        if self.taken is not None:
            row, host = self.taken, self.host_ns
            beside = f"; the cheapest synchronisation of the host costs {duration(host)}" if host is not None else ""
            left = f" ({row.says.partition('; ')[2]})" if "; " in row.says else ""
            limits = "".join(f" It is {limit}." for limit in row.limits)
            return f"Tried: clean{left}. {row.words[:1].upper()}{row.words[1:]}. It costs {row.cost}{beside}.{limits}"
        if held:
            tried = sum(row.live != "not tried" for row in held)
            how = f"of {tried} that were tried live none is clean" if tried else self.untried or "none was tried live"
            return f"No diff to take: {len(held)} candidates remove the race in the trace, and {how}."
        if not self.rows:
            return "No fix was found: no place of the two accesses is known."
        return f"No fix was found: none of {len(self.rows)} candidates removes the race and adds none."


def on_host(row: FixRow) -> bool:
    """Check whether the candidate makes the host wait."""
    return row.how.endswith("synchronisation")


def best_of_each(fixes: FixFile) -> list[FixRow]:
    """Return the first row of each kind, and the rows that were tried live."""
    ways: set[str] = set()
    best = []
    for row in fixes.rows:
        if row.how not in ways or row.live != "not tried":
            best.append(row)
        ways.add(row.how)
    return best


def table(rows: Sequence[FixRow], title: str = "Candidates, the one to take first") -> Table:
    """Return a table with a row per candidate."""
    return Table(
        title,
        ["candidate", "in the trace", "costs", "live", "what it is"],
        [
            [
                row.how,
                Cell("no race" if row.holds else "no", "good" if row.holds else "bad"),
                row.cost,
                Cell("tried: clean" if row.live == "clean" else _NOT[row.live], TONES[row.live], _live_cost(row)),
                Cell(row.words, "", "; ".join(row.remarks)),
            ]
            for row in rows
        ],
    )


def _live_cost(row: FixRow) -> str:
    if row.live_longer_ns is None:
        return ""
    return f"{'+' if row.live_longer_ns >= 0 else '-'}{duration(abs(row.live_longer_ns))} live"
