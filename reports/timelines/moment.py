"""Reads from a trace what all streams of a rank did around two racing accesses.

The two may be hundreds of milliseconds apart with thousands of kernels in between, or in a trace of millions of
records. So the file is read once, only as far as it concerns the window, and memory is bounded: of too many slices,
those nearest to the two accesses are kept.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

from streamrace.detectors import Moment
from streamrace.detectors.order.labels import Labels
from streamrace.reports.timelines.lanes import HOST, host_time, lane
from streamrace.reports.timelines.parameters import parameter_of
from streamrace.reports.window import Slice, Window
from streamrace.trace import wording
from streamrace.trace.parts import PartReader
from streamrace.trace.records import (
    Collective,
    Frame,
    Free,
    HostWait,
    Label,
    Launch,
    Phase,
    Stack,
    StreamName,
    TraceError,
    TraceRecord,
)

MOST = 3000  # slices
_ASIDE_NS = 20_000  # at least so much before and after


def window(trace: Path, first: Moment, second: Moment, *, most: int = MOST) -> Window | None:
    """Return the window around the two sides of an example, from the rank's trace file.

    None if the trace is missing, is damaged, or lacks one of the two: a page says so, and goes on without.
    """
    try:
        return _Reading((first, second), most).read(trace)
    except (TraceError, OSError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None  # the fields of a foreign trace may hold anything


def around(*sides: tuple[int, int]) -> tuple[int, int]:
    """Return the start and end of the window around two accesses."""
    begin, end = min(start for start, _ in sides), max(end for _, end in sides)
    aside = max(_ASIDE_NS, 3 * (end - begin) // 10)
    return begin - aside, end + aside


@dataclass(frozen=True)
class _Work:
    """A slice whose names are still unknown: they may come later in the trace."""

    record: Launch | Collective | HostWait
    start: int
    end: int


class _Reading:
    def __init__(self, sides: tuple[Moment, Moment], most: int) -> None:
        self._sides = sides
        self._ops = {side.op for side in sides}
        self._start, self._end = around(*((side.start, side.end) for side in sides))
        self._most = max(most - 2, 0)
        self._racing: dict[int, _Work] = {}
        self._kept: list[tuple[int, int, int, _Work]] = []  # a heap, the farthest first: -distance, -start, number
        self._seen = 0
        self._streams: dict[int, str] = {}
        self._labels: dict[int, Labels] = {}
        self._wanted: set[int] = set()  # blocks whose names are needed at the end
        self._frames: dict[int, Frame] = {}

    def read(self, trace: Path) -> Window | None:
        reader = PartReader(trace, kept=True)
        last = None  # the step in which the host left the window
        try:
            for record in reader.read():
                self._take(record)
                if last is None:
                    if host_time(record) > self._end:
                        last = -1
                elif isinstance(record, Phase):
                    # Work issued from here on begins after the window. Labels may come late, within their step.
                    if last == -1:
                        last = record.step
                    elif record.step > last:
                        break
        finally:
            reader.close()
        if any(side.op is not None and side.op not in self._racing for side in self._sides):
            return None
        return self._moment()

    def _take(self, record: TraceRecord) -> None:
        if isinstance(record, (Launch, Collective)):
            if self._start <= record.end and record.start <= self._end and 0 <= record.start <= record.end:
                self._keep(_Work(record, record.start, record.end))
        elif isinstance(record, HostWait):
            if 0 <= record.began < record.time and self._start <= record.time and record.began <= self._end:
                self._keep(_Work(record, record.began, record.time))
        elif isinstance(record, Label):
            self._labels.setdefault(record.block, Labels()).add(record)
        elif isinstance(record, Free):
            if record.block not in self._wanted:
                self._labels.pop(record.block, None)
        elif isinstance(record, Stack):
            if record.frames:
                self._frames[record.id] = record.frames[0]
        elif isinstance(record, StreamName):
            self._streams[record.stream] = record.name

    def _keep(self, work: _Work) -> None:
        record = work.record
        if isinstance(record, (Launch, Collective)):
            self._wanted |= {block for block, *_ in (*record.writes, *record.reads)}
            if record.op in self._ops:
                self._racing[record.op] = work
                return
        away = min(max(0, work.start - side.end, side.start - work.end) for side in self._sides)
        self._seen += 1
        heapq.heappush(self._kept, (-away, -work.start, -self._seen, work))
        if len(self._kept) > self._most:
            heapq.heappop(self._kept)

    # -- names ------------------------------------------------------------------------------------

    def _moment(self) -> Window:
        racing = [self._racing_slice(side) for side in self._sides]
        slices = [self._slice(work) for *_, work in self._kept] + racing
        lanes = sorted({HOST, *(piece.lane for piece in slices)}, key=lane)
        return Window(
            start=self._start,
            end=self._end,
            lanes=tuple(lanes),
            slices=tuple(sorted(slices, key=lambda piece: (piece.start, piece.op, piece.end))),
            first=racing[0],
            second=racing[1],
            left_out=self._seen - len(self._kept),
        )

    def _racing_slice(self, side: Moment) -> Slice:
        if side.op is None:
            return Slice(HOST, "free", "", side.start, side.end, -1, "free", "")
        return self._slice(self._racing[side.op])

    def _slice(self, work: _Work) -> Slice:
        record = work.record
        frame = self._frames.get(record.stack)
        place = wording.frame(frame) if frame else ""
        if isinstance(record, HostWait):
            return Slice(HOST, str(record.how), "", work.start, work.end, -1, "wait", place)
        return Slice(
            lane=str(self._streams.get(record.stream, f"stream {record.stream}")),
            kernel=wording.operator(record.kernel),
            parameter=parameter_of(record, self._labels),
            start=work.start,
            end=work.end,
            op=record.op,
            kind="collective" if isinstance(record, Collective) else "kernel",
            place=place,
        )
