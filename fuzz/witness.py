"""For a race, the timing that executes its two accesses the other way round.

The two are unordered, so neither waits for the other, and making the one that was issued first late enough
is all that it takes. What it does to training is seen by executing it: harmful or benign (DESIGN section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from detectors.races import Moment, Occurrence, Race, Side, describe
from fuzz.subject import Subject
from fuzz.verdict import Verdict
from repro.replay.deviations import Delay, Deviation
from repro.replay.graph import Graph, Times

_US = 1000
_MOST = 1 << 40  # nanoseconds, 18 minutes: by more nothing is ever late


@dataclass(frozen=True)
class Witness:
    """A timing in which the access that was issued second comes first.

    ``deviations``: from the recorded timing; none when that shows the race already. ``verdict``: what it
    does to training. Without a witness, ``reason`` says why there is none, and ``verdict`` is None.
    """

    race: Race
    occurrence: Occurrence
    deviations: tuple[Deviation, ...]
    verdict: Verdict | None
    reason: str = ""

    @property
    def harmful(self) -> bool:
        return self.verdict is not None and self.verdict.diverged


def witness(subject: Subject, race: Race) -> Witness:
    """The first of the race's examples that is harmful; else the first that can be reversed; else why none can."""
    found = None
    for occurrence in race.examples:
        one = _reverse(subject, race, occurrence)
        if one.harmful:
            return one
        if found is None or (found.verdict is None and one.verdict is not None):
            found = one
    assert found is not None  # a race has at least one example
    return found


def _reverse(subject: Subject, race: Race, occurrence: Occurrence) -> Witness:
    graph = subject.replayer.graph
    recording = subject.recording
    rank = occurrence.rank
    times = graph.times()
    first = _effect(subject, rank, occurrence.first, race.first, occurrence.block)
    second = _effect(subject, rank, occurrence.second, race.second, occurrence.block)
    deviations: tuple[Delay, ...] = ()
    if occurrence.first.op is None:
        return Witness(
            race, occurrence, (), None, "a freed block was used again before: the first access is the free itself"
        )
    operation = recording.names.name(rank, occurrence.first.op)
    how: Literal["late", "long"] = (
        "late" if race.first.access == "read" else "long"
    )  # a collective reads at its start and writes at its end
    needed = 0
    while not _comes_before(graph, second, first, times):
        needed = max(2 * needed, times[graph.effects[second].node] - times[graph.effects[first].node] + 1)
        if needed > _MOST:
            return Witness(race, occurrence, (), None, _why_none(race))
        deviations = (Delay(operation, how, _rounded(needed)),)
        times = graph.times(subject.timing(deviations))
    verdict = subject.judged(subject.replayer.run_order(graph.order(times)))
    return Witness(race, occurrence, deviations, verdict)


def _effect(subject: Subject, rank: int, moment: Moment, side: Side, block: int) -> int:
    """Where among the effects the access takes place: a collective reads when it starts, all else acts at its end."""
    graph = subject.replayer.graph
    if moment.op is None:
        return graph.place(rank, "free", block)
    if side.kernel.startswith("nccl::"):
        return graph.place(rank, "arrive" if side.access == "read" else "leave", moment.op)
    return graph.place(rank, graph.what(rank, moment.op), moment.op)


def _comes_before(graph: Graph, one: int, other: int, times: Times) -> bool:
    """In the order in which effects take place: by time, then as issued."""
    return (times[graph.effects[one].node], one) < (times[graph.effects[other].node], other)


def _why_none(race: Race) -> str:
    first, second = (describe(side.kernel, side.stack) for side in (race.first, race.second))
    return (
        f"{second} comes after {first} however late that is: here a collective starts when its last rank has "
        "arrived, also where the data does not ask for it"
    )


def _rounded(ns: int) -> int:
    """The next microsecond of which there are a power of two: short to write, and not off by a hair."""
    us = 1
    while us * _US < ns:
        us *= 2
    return us * _US
