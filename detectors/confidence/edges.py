"""Inserts order into a recorded run: its records as if the program had more lines that record, wait or synchronise.

A line is inserted in front of a statement or behind it (:class:`Spot`), at every occurrence in every rank's records.
A trace shows a statement only through the stacks of its records: consecutive records, all of them with a call at
its lines, are an occurrence. Two occurrences with no other work between them are taken for one: that adds the least
order, so a race that is gone here is gone in the program, too.

The stream that is current at a statement is not recorded: it is taken to be the stream of the statement's own work, for
a collective the stream from which it was issued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streamrace.detectors.order.races import Race
from streamrace.detectors.race_detector import RaceDetector
from streamrace.trace import wording
from streamrace.trace.records import (
    HOST_STREAM,
    Begin,
    Collective,
    Export,
    Frame,
    HostStep,
    HostWait,
    Launch,
    Record,
    RecordStream,
    Reuse,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
)

CURRENT = ""  # stands for the stream that is current at a spot, in place of a name
_FIRST_MARKER = 1 << 40  # of inserted records: no run has so many
_BACKWARD = " (backward)"
_WITH_STACKS = (Launch, Collective, Wait, HostWait, Reuse, Export)

Act = Literal["record", "wait", "wait for stream", "synchronize event", "synchronize stream", "synchronize device",
              "record_stream"]  # fmt: skip


class Spot(NamedTuple):
    """A statement: lines ``first`` to ``last`` of ``file`` in ``function``, as frames name them."""

    file: str
    first: int
    last: int
    function: str

    def has(self, frame: Frame) -> bool:
        return frame.file == self.file and self.first <= frame.line <= self.last and frame.function == self.function


class EdgeLine(NamedTuple):
    """A line to insert, ``behind`` the statement or in front of it.

    ``act``: record or wait for *the* event (a single one, recorded by whichever line came last), wait for a stream,
    synchronise the host with the event, a stream or the device, or record_stream. ``stream``: the stream that waits,
    records or is synchronised; ``awaited``: the stream to wait for. ``kernel``: of the access that the line is about.
    """

    spot: Spot
    behind: bool
    act: Act
    kernel: str
    stream: str = CURRENT
    awaited: str = CURRENT


@dataclass(frozen=True)
class Changed:
    """A run's records with inserted ones. ``inserted``: by rank, the indices of these.

    ``reached``: how often each line is reached, on all ranks.
    """

    records: Mapping[int, Sequence[TraceRecord]]
    inserted: Mapping[int, frozenset[int]]
    reached: tuple[int, ...]

    @property
    def races(self) -> list[Race]:
        """Return all races with all their occurrences."""
        return races_of(self.records)


def races_of(records: Mapping[int, Sequence[TraceRecord]]) -> list[Race]:
    """Return all races of a run with all their occurrences. Raises as :class:`RaceDetector` does."""
    detector = RaceDetector(None)
    for rank, own_records in records.items():
        detector.feed(rank, own_records)
    detector.finish()
    return detector.findings()


def put_in(records: Mapping[int, Sequence[TraceRecord]], lines: Sequence[EdgeLine]) -> Changed:
    """Return the records as if these lines stood in the program; of two lines at one place the first comes first."""
    changed: dict[int, Sequence[TraceRecord]] = {}
    inserted: dict[int, frozenset[int]] = {}
    reached = [0] * len(lines)
    for rank, own_records in records.items():
        rank_trace = _Rank(own_records)
        places = [list(rank_trace.occurrences(line)) for line in lines]
        for number, occurrences in enumerate(places):
            reached[number] += len(occurrences)
        changed[rank], inserted[rank] = rank_trace.with_lines(lines, places)
    return Changed(changed, inserted, tuple(reached))


class _At(NamedTuple):
    """The index at which a line is inserted, and the stream, stack and blocks it applies to there."""

    place: int
    stream: int
    stack: int
    blocks: tuple[int, ...]


class _Rank:
    """One rank's records."""

    def __init__(self, records: Sequence[TraceRecord]) -> None:
        self._records = records
        self._stacks = {record.id: record.frames for record in records if isinstance(record, Stack)}
        self._numbers: dict[str, int] = {}
        self._hosts: set[int] = set()
        names: dict[int, str] = {}
        for record in records:
            if isinstance(record, StreamName):
                names[record.stream] = record.name
            elif isinstance(record, (Launch, Collective)):
                names.setdefault(record.stream, f"stream {record.stream}")
        for number, name in names.items():
            self._numbers.setdefault(name, number)
            if name == HOST_STREAM:
                self._hosts.add(number)

    def occurrences(self, line: EdgeLine) -> Iterator[_At]:
        spot, records = line.spot, self._records
        inside = {number for number, frames in self._stacks.items() if any(map(spot.has, frames))}
        first, works, last = -1, list[Launch | Collective](), -1
        for index, record in enumerate(records):
            if not isinstance(record, _WITH_STACKS) or not self._stacks.get(record.stack):
                continue  # without a stack, the record cannot be attributed to a statement
            if record.stack in inside:
                if first < 0:
                    first, works = index, []
                last = index
                if isinstance(record, (Launch, Collective)):
                    works.append(record)
            elif first >= 0:
                yield from self._occurrence(line, first, works, last)
                first = -1
        if first >= 0:
            yield from self._occurrence(line, first, works, last)

    def _occurrence(self, line: EdgeLine, first: int, works: Sequence[Launch | Collective], last: int) -> Iterator[_At]:
        candidates = [work for work in works if work.kernel == line.kernel] or works
        if not candidates:
            return
        work = candidates[-1 if line.behind else 0]
        stream = work.issuer if isinstance(work, Collective) and work.issuer >= 0 else work.stream
        if stream in self._hosts:  # the host's own work does not show the current stream
            stream = 0
        blocks = tuple(dict.fromkeys(access[0] for work in candidates for access in (*work.reads, *work.writes)))
        place = last + 1 if line.behind else self._in_front(first)
        yield _At(place, stream, work.stack, blocks)

    def _in_front(self, first: int) -> int:
        """Return a statement's first index; if it begins with a wait for a marker, that of the marker's record."""
        record, at = self._records[first], first - 1
        while isinstance(record, (Wait, HostWait)) and at >= 0 and not isinstance(self._records[at], _WITH_STACKS):
            previous = self._records[at]
            if isinstance(previous, Record) and previous.marker == record.marker:
                return at
            at -= 1
        return first

    def with_lines(
        self, lines: Sequence[EdgeLine], places: Sequence[Sequence[_At]]
    ) -> tuple[Sequence[TraceRecord], frozenset[int]]:
        at: dict[int, list[tuple[EdgeLine, _At]]] = {}
        for line, occurrences in zip(lines, places, strict=True):
            for point in occurrences:
                at.setdefault(point.place, []).append((line, point))
        out: list[TraceRecord] = []
        inserted: set[int] = set()
        marker, event, time = _FIRST_MARKER, -1, 0
        streams: dict[int, None] = {}
        for index in range(len(self._records) + 1):
            for line, point in at.get(index, ()):
                start = len(out)
                marker, event = self._act(line, point, out, marker, event, time, list(streams))
                inserted.update(range(start, len(out)))
            if index == len(self._records):
                break
            record = self._records[index]
            out.append(record)
            if isinstance(record, Begin):
                time = int(record.info.get("began", 0))
            if isinstance(record, (Launch, Collective)):
                time, streams[record.stream] = record.issued, None
            elif isinstance(record, (HostWait, HostStep)):
                time = record.time
        return out, frozenset(inserted)

    def _act(
        self, line: EdgeLine, point: _At, out: list[TraceRecord], marker: int, event: int, time: int, streams: list[int]
    ) -> tuple[int, int]:
        """Append the records of one line; return the next free marker, and the event's marker."""
        stream = self._number(line.stream, point)
        if line.act == "record":
            out.append(Record(marker, stream))
            return marker + 1, marker
        if line.act == "wait" and event >= 0:
            out.append(Wait(stream, event, point.stack))
        elif line.act == "wait for stream":
            out += [Record(marker, self._number(line.awaited, point)), Wait(stream, marker, point.stack)]
            marker += 1
        elif line.act == "synchronize event" and event >= 0:
            out.append(HostWait(event, "synchronize", point.stack, time))
        elif line.act == "synchronize stream":
            out += [Record(marker, stream), HostWait(marker, "synchronize", point.stack, time)]
            marker += 1
        elif line.act == "synchronize device":
            for recorded in streams:
                began = -1 if recorded == streams[0] else time  # a single call
                out += [Record(marker, recorded), HostWait(marker, "synchronize", point.stack, time, began)]
                marker += 1
        elif line.act == "record_stream":
            out += [RecordStream(block, stream) for block in point.blocks]
        return marker, event

    def _number(self, name: str, point: _At) -> int:
        """Return the number of a stream; a stream that this rank never used gets a new number."""
        return point.stream if name == CURRENT else self._numbers.setdefault(name, max(self._numbers.values()) + 1)


def by_autograd(frame: Frame) -> bool:
    """Check whether ``frame`` is a forward line that stands for autograd's work: no program line is executed then."""
    return frame.function.removesuffix(wording.CAPTURED).endswith(_BACKWARD)
