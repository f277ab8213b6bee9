"""Counts, for each fix and kind of timing, how often training went wrong: k of N.

No rate over all timings, and so no confidence: a search varies its timings, and a run always comes out the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamrace.studies.table import Cell, Table

RANDOM = "random timings"
_NOTE = (
    "In how many of the timings that were tried training went wrong. They are varied from each other: no rate of all."
)


class Tried(NamedTuple):
    """Timings of one kind: ``diverged`` of ``of``."""

    fix: str
    timing: str
    diverged: int
    of: int


def matrix(tried: Iterable[Tried]) -> Table:
    """Return the table of the counts, summed per fix and timing."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for trial in tried:
        diverged, of = counts.get((trial.fix, trial.timing), (0, 0))
        counts[trial.fix, trial.timing] = (diverged + trial.diverged, of + trial.of)
    timings = list(dict.fromkeys(timing for _, timing in counts))
    fixes = dict.fromkeys(fix for fix, _ in counts)
    rows = [[fix, *(_cell(*counts.get((fix, timing), (0, 0))) for timing in timings)] for fix in fixes]
    return Table("", ["fix", *timings], rows, _NOTE, key="matrix")


def _cell(diverged: int, of: int) -> Cell:
    if not of:
        return Cell("not tried", "soft")
    return Cell(f"{diverged} of {of}", "bad" if diverged else "good")


def timing_of(scenario: Mapping[str, Any]) -> str:
    """Describe what decides the durations of a scenario's own timing, in short."""
    parts = [str(scenario.get("hardware", "its own timing"))]
    if scenario.get("stands_for") == "itself":
        parts.append("a small model's durations")
    slow = scenario.get("slow") or {}
    if isinstance(slow, Mapping):
        parts += [f"{pattern} x {factor:g}" for pattern, factor in slow.items() if isinstance(factor, (int, float))]
    if scenario.get("jitter"):
        parts.append(f"jitter {scenario['jitter']}, seed {scenario.get('timing_seed', 0)}")
    return ", ".join(parts)
