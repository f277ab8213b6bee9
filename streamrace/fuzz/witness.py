"""Finds for a race the timing that executes its two accesses in reverse order.

The two accesses are unordered, so neither waits for the other, and it suffices to delay the access that was issued
first. The effect on training is observed by executing the timing: harmful if a value that training uses changes, else
benign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from streamrace.detectors.order.races import Moment, Occurrence, Race, Side, describe
from streamrace.device.tokens import rounded
from streamrace.fuzz.occurrences import spread
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.replay.deviations import Deviation, OperationDelay
from streamrace.replay.graph import Graph, Times
from streamrace.replay.recording import Recording

_WITHOUT_EFFECT = "one of the two was done when it was issued: a replay has no other time for it"
_MOST = 1 << 40  # nanoseconds, 18 minutes: more than any delay needed


@dataclass(frozen=True)
class Reversal:
    """A timing in which the access that was issued second comes first.

    ``deviations``: from the recorded timing; empty if that has it already. ``reason``: why no timing reverses the race.
    ``verdict``: its effect on training; None if it was not executed.
    """

    race: Race
    occurrence: Occurrence
    deviations: tuple[Deviation, ...]
    reason: str = ""
    verdict: ReplayVerdict | None = None

    @property
    def harmful(self) -> bool:
        return self.verdict is not None and self.verdict.diverged


def witness(subject: Subject, race: Race) -> Reversal:
    """Return the first harmful occurrence of those tried; else the first that can be reversed; else why none can.

    The tried occurrences are the race's examples, which are its first ones, and then a few from the whole run.
    """
    best: Reversal | None = None
    for occurrence in _some(subject, race):
        reversal = reverse(subject.recording, subject.replayer.graph, race, occurrence)
        judged = reversal if reversal.reason else replace(reversal, verdict=subject.run(reversal.deviations))
        if judged.harmful:
            return judged
        if best is None or (best.verdict is None and judged.verdict is not None):
            best = judged
    assert best is not None  # a race has at least one example
    return best


def _some(subject: Subject, race: Race) -> Iterator[Occurrence]:
    yield from race.examples
    if race.occurrences > len(race.examples):
        yield from (occurrence for occurrence in spread(subject.occurrences(race)) if occurrence not in race.examples)


def reverse(recording: Recording, graph: Graph, race: Race, occurrence: Occurrence) -> Reversal:
    """Build the timing; nothing is executed."""
    rank, times = occurrence.rank, graph.times()
    first = _place(graph, rank, occurrence.first, race.first)
    second = _place(graph, rank, occurrence.second, race.second)
    if first is None or second is None:
        return Reversal(race, occurrence, (), _WITHOUT_EFFECT)
    assert occurrence.first.op is not None
    operation = recording.names.name(rank, occurrence.first.op)
    # A collective reads when it starts and writes when it ends; a kernel does both at its end.
    how: Literal["late", "long"] = "late" if graph.effects[first].what == "arrive" else "long"
    deviations: tuple[OperationDelay, ...] = ()
    needed = 0
    while not _comes_before(graph, second, first, times):
        needed = max(2 * needed, times[graph.effects[second].node] - times[graph.effects[first].node] + 1)
        if needed > _MOST:
            return Reversal(race, occurrence, (), _why_none(race))
        deviations = (OperationDelay(operation, how, rounded(needed)),)
        times = graph.times(recording.deviated(deviations))
    return Reversal(race, occurrence, deviations)


def _place(graph: Graph, rank: int, moment: Moment, side: Side) -> int | None:
    """Return the place of the access among the effects; None if a replay has no effect for it."""
    if moment.op is None:
        return None
    if side.kernel.startswith("nccl::"):
        return graph.place(rank, "arrive" if side.access == "read" else "leave", moment.op)
    return graph.of_launch(rank, moment.op)


def _comes_before(graph: Graph, first: int, second: int, times: Times) -> bool:
    """Compare in the order in which effects take place: by time, then as issued."""
    return (times[graph.effects[first].node], first) < (times[graph.effects[second].node], second)


def _why_none(race: Race) -> str:
    first, second = (describe(side.kernel, side.stack) for side in (race.first, race.second))
    return (
        f"{second} comes after {first} however late that is: here a collective starts when its last rank has "
        "arrived, also where the data does not ask for it"
    )
