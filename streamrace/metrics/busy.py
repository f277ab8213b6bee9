"""Splits the time of an optimizer step into computing, exposed communication, other work, and idle time.

A step begins when its first work is issued and all work of the steps before it has ended, and lasts to the beginning
of the next; the last step to the end of the trace. (Not from its first phase: phases have no time of their own. Nor
from the issue alone: a host that never waits issues all steps before the first has run.) Work before the first step is
left out. Work belongs to the step *in which it runs*, to the nanosecond, whichever step issued it: streams lag behind
the host, and only so the parts of a step add up to it.

A collective is identified by the *link* that carries it, whatever stream it is on: NCCL runs it on the current stream,
unless the program requests a stream of its own (``async_op``). Its time on the compute stream is communication, not
computing. Traces without links name the stream of the group.

*Exposed* communication is the time in which a group's collective runs and the compute stream does not. If
collectives of several groups run at once, each is exposed: their sum may exceed the union, which is given too.
A collective runs from the arrival of its last member to its end; waiting for members counts as idle.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrace.trace.records import Collective, End, HostWait, Launch, Phase, StreamName, TraceRecord

COMPUTE = "compute"
COMMUNICATION = "nccl"  # prefix of the names of links, and of groups' streams

_Points = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class GroupTime:
    """Nanoseconds in which the link ``name`` of a process group was in use, and those in which nothing was computed."""

    name: str
    busy: int
    exposed: int


@dataclass(frozen=True)
class StepTime:
    """One optimizer step, in virtual nanoseconds.

    ``compute``: the compute stream computed. ``communication``: some collective ran; ``exposed``: and the compute
    stream did not compute. ``other``: some other stream ran while neither did. ``idle``: nothing ran. ``blocked``: the
    host stood still.
    ``compute + exposed + other + idle == time``; ``blocked`` overlaps all of them.
    """

    step: int
    start: int
    time: int
    compute: int
    communication: int
    exposed: int
    other: int
    idle: int
    blocked: int
    groups: tuple[GroupTime, ...]


@dataclass(frozen=True)
class Busy:
    """All steps, in order."""

    steps: tuple[StepTime, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


class _Spans:
    """Intervals of time, joined if an interval begins at or before the previous one's end."""

    __slots__ = ("ends", "last", "starts")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.last = -1

    def add(self, start: int, end: int) -> None:
        if start <= self.last and self.ends and start >= self.starts[-1]:
            if end > self.last:
                self.ends[-1] = self.last = end
        elif start < end:
            self.starts.append(start)
            self.ends.append(end)
            self.last = end


class BusyMetrics:
    """Computes :class:`Busy` from one rank's records, in order. Keeps 16 bytes per gapless stretch of a stream."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._streams: dict[int | str, _Spans] = {}  # by stream; collectives by their link, if recorded
        self._blocked = _Spans()
        self._steps: list[tuple[int, int]] = []  # step, when it began
        self._step: int | None = None  # a step that has begun, and of which no work was issued yet
        self._end = 0

    def feed(self, records: Iterable[TraceRecord]) -> None:
        """Take the next records."""
        streams = self._streams
        for record in records:
            kind = type(record)
            if kind is Launch or kind is Collective:
                assert isinstance(record, (Launch, Collective))
                if self._step is not None:
                    self._steps.append((self._step, max(record.issued, self._end)))
                    self._step = None
                end = record.end
                if end >= 0:  # else the run ended first
                    link = isinstance(record, Collective) and record.link
                    place = link or record.stream
                    spans = streams.get(place)
                    if spans is None:
                        spans = streams[place] = _Spans()
                    spans.add(record.start, end)
                    if end > self._end:
                        self._end = end
            elif kind is HostWait:
                assert isinstance(record, HostWait)
                if record.how != "query" and record.began >= 0:
                    self._blocked.add(record.began, record.time)
            elif kind is Phase:
                assert isinstance(record, Phase)
                before = self._steps[-1][0] if self._steps else None
                self._step = record.step if record.name != "init" and record.step != before else None
            elif kind is StreamName:
                assert isinstance(record, StreamName)
                self._names[record.stream] = record.name
            elif kind is End:
                assert isinstance(record, End)
                self._end = max(self._end, record.time)

    def result(self) -> Busy:
        """Return the times so far. A trace without an end ends with its last work."""
        if not self._steps:
            return Busy(())
        by_name: dict[str, list[_Spans]] = {}
        began = self._steps[0][1]
        for place, spans in sorted(self._streams.items(), key=_turn):
            if isinstance(place, str) and max(spans.ends, default=0) <= began:
                continue  # a link that no step used: groups are renamed once they have a purpose
            name = place if isinstance(place, str) else self._names.get(place, f"stream {place}")
            by_name.setdefault(name, []).append(spans)
        bounds = np.array([*(began for _, began in self._steps), max(self._end, self._steps[-1][1])], dtype=np.int64)
        every = [span for spans in by_name.values() for span in spans]
        edges = [
            np.array(times, dtype=np.int64) for spans in [*every, self._blocked] for times in (spans.starts, spans.ends)
        ]
        points = np.unique(np.concatenate([bounds, *edges]))
        steps = _Steps(points, bounds)

        none: _Mask = np.zeros(len(points) - 1, dtype=np.bool_)
        masks = {key: np.logical_or.reduce([_inside(points, span) for span in spans]) for key, spans in by_name.items()}
        compute = masks.get(COMPUTE, none)
        groups = {name: mask for name, mask in masks.items() if name.startswith(COMMUNICATION)}
        communication = np.logical_or.reduce([none, *groups.values()])
        anything = np.logical_or.reduce([none, *masks.values()])
        of_groups = [(name, steps.lasts(mask), steps.lasts(mask & ~compute)) for name, mask in groups.items()]
        lasts = {
            "compute": steps.lasts(compute),
            "communication": steps.lasts(communication),
            "exposed": steps.lasts(communication & ~compute),
            "other": steps.lasts(anything & ~communication & ~compute),
            "idle": steps.lasts(~anything),
            "blocked": steps.lasts(_inside(points, self._blocked)),
        }
        return Busy(
            tuple(
                StepTime(
                    step=step,
                    start=start,
                    time=int(bounds[at + 1]) - start,
                    groups=tuple(GroupTime(name, busy[at], exposed[at]) for name, busy, exposed in of_groups),
                    **{part: times[at] for part, times in lasts.items()},
                )
                for at, (step, start) in enumerate(self._steps)
            )
        )


def _turn(of: tuple[int | str, _Spans]) -> tuple[bool, int | str]:
    """Return a key that sorts streams by their numbers, then links by their names."""
    return isinstance(of[0], str), of[0]


class _Steps:
    """Sums up stretches of time by step. ``points`` cut time into stretches, ``bounds`` are those of the steps."""

    def __init__(self, points: _Points, bounds: _Points) -> None:
        self._lengths = np.diff(points)
        self._at = np.searchsorted(points, bounds)

    def lasts(self, stretches: _Mask) -> list[int]:
        """Return the total time of these stretches, in each step."""
        passed = np.concatenate([[0], np.cumsum(self._lengths * stretches)])[self._at]
        return [int(time) for time in np.diff(passed)]


def _inside(points: _Points, spans: _Spans) -> _Mask:
    """Return which stretches between the points lie in an interval. All edges are points."""
    starts, ends = (np.sort(np.array(times, dtype=np.int64)) for times in (spans.starts, spans.ends))
    # Open at a point: the intervals begun up to the point, without those ended.
    begun, ended = (np.searchsorted(edges, points[:-1], side="right") for edges in (starts, ends))
    inside: _Mask = begun > ended
    return inside
