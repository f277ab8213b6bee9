"""Groups the waits of a run by *site*, a line of source, so that a trace can be judged without them.

Everything that orders work, and that a line of the program or of a library requests, is of one of these kinds:

* waits of streams (``wait_stream``, ``wait_event``, ``Work.wait``) and *deliberate* waits of the host: every
  ``synchronize`` of a device, a stream or an event, a barrier. These calls have no other purpose;
* ``record_stream``, which makes the allocator wait;
* *incidental* waits of the host: those of a read (``.item()``, ``.tolist()``, a blocking copy to the host, a result
  whose size the host needs), of a blocking copy to the device, and any synchronisation in a file that measures: a
  timer's.

A trace always shows which waits are incidental. The line that requested another wait is recorded only on demand
(:func:`streamrace.device.overrides.tell`): collectives and autograd's engine add waits of their own at lines of the
program, and those cannot be removed. A ``query`` is none of these: it is polled until it returns True.

A read's wait always exists for the read itself: a program that overwrites a tensor after ``.cpu()``, or uses the
result, relies on the purpose of that call. So pairs whose first access is the read's own are not counted.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from streamrace.detectors.confidence.numbers import NumberSet, Places
from streamrace.detectors.order.races import Occurrence, Race, site
from streamrace.trace import wording
from streamrace.trace.records import (
    HOST_STREAM,
    LEFT_OUT,
    Alloc,
    Asked,
    Collective,
    Frame,
    Free,
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

_INCIDENTAL = ("read", "copy")
_MEASURES = re.compile(r"(^|[/_])(timer|timers|timing|profiler|profiling)\.py$")
_WORDS = {
    "read": "the read",
    "copy": "the blocking copy to the device",
    "measurement": "the timer's wait",
    "synchronize": "the host's wait",
}
_OF_STREAMS = ("stream.wait_event", "stream.wait_stream", "event.wait", "work.wait")
_OF_HOST = ("stream.synchronize", "event.synchronize", "device.synchronize", "work.wait")
_SEVERAL = ("device.synchronize", "work.wait")  # calls that may make several records, one behind the other
RECORDS = "tensor.record_stream"
WAITING = frozenset({Wait, HostWait})
_MEMORY = frozenset({Alloc, Reuse})  # more than half of all records: none is a wait

Keep = Callable[[int, TraceRecord], bool]
"""Predicate: selects the records of a rank to judge."""

AsIf = Callable[[int, TraceRecord], TraceRecord]
"""Maps a record of a rank to the record that is judged in its place."""

Counts = Callable[[Occurrence], bool]
"""Predicate: selects the occurrences of a race (:class:`streamrace.detectors.race_detector.RaceDetector`)."""

_Key = tuple[int, str, int, int]  # rank, kind, stream, stack


class WaitSite(NamedTuple):
    """A line whose calls wait, and how: an operation of :mod:`streamrace.device.overrides`, or read, copy, measurement,
    synchronize (of the host, by a call that no override can remove).
    """

    how: str
    frame: Frame | None

    def __str__(self) -> str:
        words, frame = _WORDS.get(self.how, self.how), self.frame
        return f"{words} at {wording.frame(frame, path=True)}" if frame else words

    @property
    def incidental(self) -> bool:
        """Return whether the wait has another purpose than order."""
        return self.how in (*_INCIDENTAL, "measurement")


def place_of(operation: str, frame: Frame | None) -> str:
    """Return the site as :func:`streamrace.device.overrides.leave_out` takes it; empty if it cannot be left out."""
    return f"{operation}@{frame.file}:{frame.line}" if operation and frame else ""


class Waits:
    """Collects the waits of a run. :meth:`feed` it all ranks' records, each rank's in order.

    ``every``: include waits that are not incidental. ``sites``: each with its first wait (n-th of its rank's waits, and
    the rank). ``operations``: by which a site can be left out of a live run, if possible. ``counts``: number
    of waits on all ranks. ``others``: waits that no line requested. ``left_out``: how often a call was left out of
    this very run, by its operation and line (:func:`streamrace.device.overrides.leave_out`).
    """

    def __init__(self, *, every: bool = False) -> None:
        self.every = every
        self.sites: dict[WaitSite, tuple[int, int]] = {}
        self.operations: dict[WaitSite, str] = {}
        self.counts: Counter[WaitSite] = Counter()
        self.others = 0
        self.left_out: Counter[WaitSite] = Counter()
        self._ranks: dict[int, _Rank] = {}
        self._markers: dict[_Key, dict[WaitSite, NumberSet]] = defaultdict(dict)  # markers of the waits
        self._askers: dict[tuple[int, int, int], set[WaitSite | None]] = defaultdict(set)  # rank, block, stream
        self._own_ops: dict[tuple[WaitSite, int], NumberSet] = defaultdict(NumberSet)  # by rank: operations
        self._places: dict[int, Places[WaitSite]] = defaultdict(Places)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        for record in records:
            if type(record) in _MEMORY:
                continue
            if isinstance(record, (HostWait, Wait)):
                if isinstance(record, HostWait):
                    self._host_wait(rank, state, record)
                elif self.every:
                    self._wait(rank, state, record)
                continue
            if isinstance(record, (Launch, Collective)):
                state.last, state.ops = record, record.op
                if state.requests and (frame := state.frames.get(record.stack)):
                    state.requests.pop((frame.file, frame.line), None)
                state.claimed = None
            elif isinstance(record, Record):
                state.marked = record
            elif isinstance(record, Stack):
                state.frames[record.id] = site(record.frames)
            elif isinstance(record, StreamName):
                state.names[record.stream] = record.name
            elif isinstance(record, Asked):
                self._ask(rank, state, record)
            elif isinstance(record, RecordStream):
                askers = self._askers[rank, record.block, record.stream]
                if not askers:  # no line requested it: a library of the device's own
                    askers.add(None)
                    state.unasked[record.block].append(record.stream)
            elif isinstance(record, Free):
                for stream in state.unasked.pop(record.block, ()):
                    if self._askers.get((rank, record.block, stream)) == {None}:  # treated as never requested
                        del self._askers[rank, record.block, stream]

    def _ask(self, rank: int, state: _Rank, record: Asked) -> None:
        state.claimed = None
        frame = Frame(record.file, record.line, record.function)
        if record.operation.startswith(LEFT_OUT):
            self.left_out[WaitSite(record.operation.removeprefix(LEFT_OUT), frame)] += 1
            return
        if not record.operation.startswith("tensor.") and record.operation:
            state.requests[frame.file, frame.line] = record
            return
        requested = WaitSite(record.operation, frame) if record.operation else None
        self._askers[rank, record.block, record.stream].add(requested)
        if requested is not None and self.every:
            self._add(rank, state, requested, record.operation)

    def _wait(self, rank: int, state: _Rank, record: Wait) -> None:
        request = self._claim(state, record.stack, _OF_STREAMS)
        if request is None:
            self.others += 1
            return
        requested = WaitSite(request.operation, Frame(request.file, request.line, request.function))
        self._add(rank, state, requested, request.operation, (rank, "wait", record.stream, record.stack), record.marker)

    def _host_wait(self, rank: int, state: _Rank, record: HostWait) -> None:
        frame = state.frames.get(record.stack)
        marked = state.marked if state.marked is not None and state.marked.marker == record.marker else None
        if marked is not None and state.names.get(marked.stream) == HOST_STREAM:
            return  # the host's own access to pinned memory, which the host's order covers
        operation = ""
        if record.how in _INCIDENTAL:
            wait_site = WaitSite(record.how, frame)
        elif record.how == "synchronize":
            request = self._claim(state, record.stack, _OF_HOST)
            operation = request.operation if request else ""
            if request is not None:
                frame = Frame(request.file, request.line, request.function)
            if frame is not None and _MEASURES.search(frame.file):
                wait_site = WaitSite("measurement", frame)
            elif self.every:
                wait_site = WaitSite(operation or "synchronize", frame)
            else:
                return
        else:
            return
        self._add(rank, state, wait_site, operation, (rank, "host", -1, record.stack), record.marker)
        last = state.last
        its = marked is not None and last is not None and last.stream == marked.stream and last.stack == record.stack
        if its and last is not None and wait_site.incidental:
            self._own_ops[wait_site, rank].add(last.op)

    @staticmethod
    def _claim(state: _Rank, stack: int, operations: Sequence[str]) -> Asked | None:
        """Return the call that made this record: the latest requested at its place that has no record yet."""
        frame = state.frames.get(stack)
        if frame is None:
            return None
        place = frame.file, frame.line
        latest = state.claimed
        if latest is not None and (latest.file, latest.line) == place and latest.operation in _SEVERAL:
            return latest if latest.operation in operations else None
        request = state.requests.get(place)
        if request is None or request.operation not in operations:
            return None
        state.claimed = state.requests.pop(place)
        return request

    def _add(
        self, rank: int, state: _Rank, wait_site: WaitSite, operation: str, key: _Key | None = None, marker: int = -1
    ) -> None:
        state.waits += 1
        self.sites[wait_site] = min((state.waits, rank), self.sites.get(wait_site, (state.waits, rank)))
        self.counts[wait_site] += 1
        if operation:
            self.operations.setdefault(wait_site, operation)
        if key is not None:
            self._markers[key].setdefault(wait_site, NumberSet()).add(marker)
        self._places[rank].add(state.ops, wait_site)

    def site_of(self, rank: int, record: TraceRecord) -> WaitSite | None:
        """Return the line that requested this wait, if known."""
        if isinstance(record, Wait):
            markers_of = self._markers.get((rank, "wait", record.stream, record.stack))
        elif isinstance(record, HostWait):
            markers_of = self._markers.get((rank, "host", -1, record.stack))
        else:
            return None
        return next((wait_site for wait_site, markers in (markers_of or {}).items() if record.marker in markers), None)

    def without(self, sites: Iterable[WaitSite]) -> Keep:
        """Keep all records but these lines' waits. A ``record_stream`` that another line requests, too, is kept."""
        dropped = frozenset(sites)

        def keep(rank: int, record: TraceRecord) -> bool:
            if isinstance(record, (Wait, HostWait)):
                return self.site_of(rank, record) not in dropped
            if isinstance(record, RecordStream):
                askers = self._askers.get((rank, record.block, record.stream))
                return not askers or not askers <= dropped
            return True

        return keep

    def recorded(self, sites: Iterable[WaitSite]) -> set[tuple[int, int]]:
        """Return rank and number of the blocks for which these lines call ``record_stream``."""
        requested = set(sites)
        return {(rank, block) for (rank, block, _), askers in self._askers.items() if askers & requested}

    def askers(self, rank: int, block: int, stream: int) -> list[WaitSite]:
        """Return the lines that call ``record_stream`` for this block and stream; empty if an unknown caller does."""
        askers = self._askers.get((rank, block, stream), set())
        return [] if None in askers else [asker for asker in askers if asker is not None]

    def own(self, sites: Iterable[WaitSite]) -> set[tuple[int, int]]:
        """Return rank and number of the operations that these incidental waits belong to."""
        chosen = frozenset(sites)
        return {(rank, op) for (site, rank), ops in self._own_ops.items() if site in chosen for op in ops}

    def besides_own(self, sites: Iterable[WaitSite]) -> Counts:
        """Return a predicate for occurrences whose first access is none that these waits belong to."""
        chosen = frozenset(sites)

        def counts(occurrence: Occurrence) -> bool:
            op = occurrence.first.op
            return op is None or not any(op in self._own_ops.get((site, occurrence.rank), ()) for site in chosen)

        return counts

    def counted(self, occurrence: Occurrence) -> bool:
        """Check whether an occurrence's first access belongs to none of the waits so far."""
        op = occurrence.first.op
        return op is None or not any(rank == occurrence.rank and op in ops for (_, rank), ops in self._own_ops.items())

    def between(self, occurrence: Occurrence) -> frozenset[WaitSite]:
        """Return the sites whose waits come between the two accesses.

        May be empty: if the pair is ordered by waits of another rank's host.
        """
        first, second = occurrence.first.op, occurrence.second.op
        if first is None or occurrence.rank not in self._places:
            return frozenset()
        return self._places[occurrence.rank].between(first, second)


class _Rank:
    """The state of a rank's host."""

    __slots__ = ("claimed", "frames", "last", "marked", "names", "ops", "requests", "unasked", "waits")

    def __init__(self) -> None:
        self.frames: dict[int, Frame | None] = {}
        self.names: dict[int, str] = {}
        self.last: Launch | Collective | None = None
        self.marked: Record | None = None
        self.requests: dict[tuple[str, int], Asked] = {}  # calls without a record so far, by place
        self.claimed: Asked | None = None  # the call of the wait that was read last
        self.unasked: dict[int, list[int]] = defaultdict(list)  # by block: streams that no line requested
        self.ops = self.waits = 0


def but_for(races: Sequence[Race], forgiven: Callable[[Race, int], bool]) -> list[Race]:
    """Return the races without the examples, by index, for which ``forgiven`` is true."""
    remaining = []
    for race in races:
        examples = tuple(example for at, example in enumerate(race.examples) if not forgiven(race, at))
        if examples:
            remaining.append(
                replace(
                    race,
                    occurrences=len(examples),
                    manifested=sum(example.manifested for example in examples),
                    slack_ns=min(example.slack_ns for example in examples),
                    ranks=tuple(sorted({example.rank for example in examples})),
                    examples=examples,
                )
            )
    return remaining


def races_without(waits: Waits, judge: Callable[[Keep], Sequence[Race]], sites: Iterable[WaitSite]) -> list[Race]:
    """Return the races that appear without these waits, except those of the reads that the waits belong to."""
    dropped = tuple(sites)
    own_operations = waits.own(dropped)
    return but_for(
        judge(waits.without(dropped)),
        lambda race, at: (race.examples[at].rank, race.examples[at].first.op) in own_operations,
    )
