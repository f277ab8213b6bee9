"""Which fix was tried under which timings, and how often training went wrong: k of N, with its confidence interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuzz.interval import wilson

RANDOM = "random timings"


class Tried(NamedTuple):
    """Timings of one kind: ``diverged`` of ``of``."""

    fix: str
    timing: str
    diverged: int
    of: int


class Cell(NamedTuple):
    """One place of the matrix, as it is read: "3 of 5", "15 % to 95 %"; empty where nothing was tried."""

    share: str
    interval: str
    tone: str


@dataclass(frozen=True)
class Matrix:
    """Rows are fixes, columns are timings; ``rows`` in the order in which they were given."""

    timings: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]


def matrix(tried: Iterable[Tried]) -> Matrix:
    """What was tried, added up. The interval is Wilson's, 95 %: one run proves little, and it says how little."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for one in tried:
        diverged, of = counts.get((one.fix, one.timing), (0, 0))
        counts[one.fix, one.timing] = (diverged + one.diverged, of + one.of)
    fixes = tuple(dict.fromkeys(fix for fix, _ in counts))
    timings = tuple(dict.fromkeys(timing for _, timing in counts))
    return Matrix(
        timings, {fix: tuple(_cell(*counts.get((fix, timing), (0, 0))) for timing in timings) for fix in fixes}
    )


def _cell(diverged: int, of: int) -> Cell:
    if not of:
        return Cell("", "", "")
    low, high = wilson(diverged, of)
    return Cell(f"{diverged} of {of}", f"{low:.0%} to {high:.0%}", "bad" if diverged else "good")


def timing_of(scenario: Mapping[str, Any]) -> str:
    """What decides the durations of a scenario's own timing, in short."""
    parts = [str(scenario.get("hardware", "its own timing"))]
    if scenario.get("stands_for") == "itself":
        parts.append("a small model's durations")
    slow = scenario.get("slow") or {}
    if isinstance(slow, Mapping):
        parts += [f"{pattern} x {factor:g}" for pattern, factor in slow.items() if isinstance(factor, (int, float))]
    if scenario.get("jitter"):
        parts.append(f"jitter {scenario['jitter']}, seed {scenario.get('timing_seed', 0)}")
    return ", ".join(parts)
