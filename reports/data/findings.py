"""Holds the verdict on one run as data, and writes it: ``findings.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.detectors import Divergence, Finding, Race, Stale, Uncovered
from streamrace.detectors.confidence.incidental import OrderBasis
from streamrace.reports.data.whole import whole
from streamrace.reports.text import clean

FORMAT = "stream-race-findings"
VERSION = 1


class Verdict(StrEnum):
    """The verdict of a run, in a word."""

    UNSTABLE = "unstable"  # a race, and this timing shows it: values differ from the reference
    HIDDEN = "hidden"  # a race that this timing does not show
    STALE = "stale"  # all accesses are ordered, yet an older version of a parameter is used
    UNCOVERED = "uncovered"  # a part of a partition is read that was never written
    DIVERGED = "diverged"  # values differ, and no race explains it
    CLEAN = "clean"  # none of these
    # For a program of the user's own, whose values have no reference (streamrace.reports.data.checked):
    RACE = "race"
    FRAGILE = "fragile"  # ordered only by waits that exist for another reason
    UNKNOWN = "unknown"  # nothing was found but not all was seen, or the run was killed
    # All is ordered, and a value is not what the program states that it must be (``stale`` is a third kind):
    ARITHMETIC = "wrong arithmetic"
    BOUNDS = "wrong bounds"
    UNINITIALISED = "uninitialised"  # all is ordered, and a result depends on memory that was never written

    @property
    def tone(self) -> str:
        """The tone of a :class:`streamrace.reports.table.Cell`."""
        return {"clean": "good", "hidden": "warn", "fragile": "warn", "unknown": "warn"}.get(self, "bad")


class WitnessOf(NamedTuple):
    """The token of a timing that executes a race's pair in the other order, or the reason why no timing does."""

    token: str
    reason: str


@dataclass(frozen=True)
class Cost:
    """The cost of a run in virtual time: nanoseconds per optimizer step, on average over ranks."""

    step_ns: float
    blocked_ns: float


@dataclass(frozen=True)
class Findings:
    """All that is known about one run. ``failure``: why it ended early, if it did."""

    scenario: Mapping[str, Any]
    versions: Mapping[str, str]
    races: Sequence[Race]
    stale: Stale | None
    uncovered: Sequence[Uncovered]
    divergence: Divergence | None
    cost: Cost | None
    steps_done: int
    failure: str | None = None
    watch: Finding | None = None  # the NaN watch's finding, if the watch was on
    witnesses: Sequence[WitnessOf] = ()  # one witness per race
    profile: Mapping[str, Any] = field(default_factory=dict)  # the hardware that durations are from, its rates
    distance: float = 0.0  # largest, of the secondary from the primary, between backward and forward pass
    holding: OrderBasis = field(default_factory=OrderBasis)  # the waits that a clean verdict depends on
    unexercised: Sequence[str] = ()  # features that were on and never used: sentences without a full stop

    @property
    def verdict(self) -> Verdict:
        diverged = self.divergence is not None and self.divergence.diverged
        if self.races:
            return Verdict.UNSTABLE if diverged else Verdict.HIDDEN
        if self.stale is not None:
            return Verdict.STALE
        if self.uncovered:
            return Verdict.UNCOVERED
        return Verdict.DIVERGED if diverged else Verdict.CLEAN

    @property
    def causes(self) -> tuple[str, ...]:
        """All causes found, not only the gravest: race, stale, uncovered."""
        found = {"race": self.races, "stale": self.stale, "uncovered": self.uncovered}
        return tuple(cause for cause, what in found.items() if what)

    def sentence(self) -> str:
        """Return the verdict as sentences for a person."""
        parts = [
            {
                Verdict.UNSTABLE: "Unstable: streams race, and training goes wrong.",
                Verdict.HIDDEN: "A race is there, and did no harm in this timing: training came out right by luck.",
                Verdict.STALE: "Stale: every access is ordered, and yet an older version of a parameter is used.",
                Verdict.UNCOVERED: "Uncovered: a part of a secondary partition is read that nothing wrote.",
                Verdict.DIVERGED: "Training goes wrong, and no race between streams explains it.",
                Verdict.CLEAN: clean("no race, and every value equals the reference bit for bit", self.unexercised),
            }[self.verdict]
        ]
        if self.holding.held:
            parts.append("But only by chance: part of what orders it are waits that are there for another reason.")
        if self.divergence is None:
            parts = [f"No reference to compare with; found: {', '.join(self.causes) or 'nothing'}."]
        if self.failure:
            parts.append(f"The run ended early: {self.failure}.")
        return " ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "verdict": str(self.verdict),
            "sentence": self.sentence(),
            "failure": self.failure,
            "steps_done": self.steps_done,
            "causes": list(self.causes),
            "stale": _told(self.stale) if self.stale else None,
            "uncovered": [_told(one) for one in self.uncovered],
            "divergence": self.divergence.as_dict() if self.divergence else None,
            "distance": f"{self.distance:.3g}",
            "diverged": bool(self.divergence and self.divergence.diverged),
            "watch": _told(self.watch) if self.watch else None,
            "checked": None,  # only for a program of the user's own
            "rests": self._rests(),
            "races": [
                {**race.as_dict(), "witness": witness._asdict() if witness else None}
                for race, witness in zip_longest(self.races, self.witnesses)
            ],
            "virtual_ns_per_step": self.cost.step_ns if self.cost else None,
            "host_blocked_ns_per_step": self.cost.blocked_ns if self.cost else None,
            "scenario": dict(self.scenario),
            "profile": dict(self.profile),
            "versions": dict(self.versions),
        }

    def _rests(self) -> dict[str, Any] | None:
        if not (self.holding.held or self.holding.unexamined or self.unexercised):
            return None
        return {
            "held": [one.as_dict() for one in self.holding.held],
            "unexamined": self.holding.unexamined,
            "unexercised": list(self.unexercised),
        }


def _told(found: Stale | Uncovered | Finding) -> dict[str, Any]:
    return {**found.as_dict(), "sentence": found.sentence()}


def write(findings: Findings, folder: Path) -> Path:
    """Write ``findings.json``, whole or not at all: a reader may come while the run ends. Raises OSError."""
    return put(findings.as_dict(), folder)


def put(data: Mapping[str, Any], folder: Path) -> Path:
    """Write the data of ``findings.json``, as :func:`write` does."""
    path = folder / "findings.json"
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    return path
