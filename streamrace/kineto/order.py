"""Reads the order of the GPU's work from a trace of torch's profiler: happens-before between streams, by vector clocks.

CUDA numbers the calls of a process as they begin. Work, waits and synchronisations have the number of their call, the
"correlation", and are taken in that order. Work is ordered behind earlier work of its stream; behind an event for which
its stream waits, and all before that event; and behind the synchronisations that its thread of the host made before.
An event stands in its stream where cudaEventRecord was called. Neither times nor threads are taken for order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from streamrace.kineto.file import CALLS, WORK, Event, KinetoTrace, args, time, whole
from streamrace.trace.records import TraceError

SYNCS = "cuda_sync"
RECORDED = "wait_on_cuda_event_record_corr_id"
QUERIES = ("cudaEventQuery", "cuEventQuery", "hipEventQuery")


class KinetoStream(NamedTuple):
    """A stream of a GPU, by the numbers that CUPTI gives them."""

    device: int
    number: int


_Clock = Mapping[KinetoStream, int]  # how many pieces of work of each stream are done


class _Mark(NamedTuple):
    """A position of a stream that an event marks. ``number``: of the call that recorded the event."""

    number: int
    stream: KinetoStream


@dataclass(frozen=True, eq=False)
class KinetoWork:
    """A kernel, copy or fill. ``place``: its position in its stream; ``behind``: the work of other streams before it.

    ``launch``: the call of the host; None if the trace does not have it.
    """

    stream: KinetoStream
    place: int
    correlation: int
    event: Event
    start: float
    end: float
    launch: Event | None
    behind: _Clock

    @property
    def is_collective(self) -> bool:
        """Check whether NCCL made it."""
        return "Collective name" in args(self.event) or str(self.event.get("name")).startswith("nccl")

    def waits_for(self, other: KinetoWork) -> bool:
        """Check whether something orders this behind ``other``."""
        if other.stream == self.stream:
            return other.place < self.place
        return other.place < self.behind.get(other.stream, 0)


class Unordered(NamedTuple):
    """Work that does not wait for ``first``, which was launched before it on another stream.

    ``overlapped``: both ran at the same time. If nothing did, ``first`` is the last that ``second`` does not wait for.
    """

    first: KinetoWork
    second: KinetoWork
    overlapped: bool


@dataclass
class Order:
    """The order of a trace. ``waits``: number by the stream of the event, and the stream that waits.

    ``unresolved``: number of waits and synchronisations, by kind, whose event the trace does not have.
    """

    streams: dict[KinetoStream, list[KinetoWork]] = field(default_factory=dict)
    waits: Counter[tuple[KinetoStream, KinetoStream]] = field(default_factory=Counter)
    unresolved: Counter[str] = field(default_factory=Counter)

    def unordered(self, first: KinetoStream, second: KinetoStream) -> Iterator[Unordered]:
        """Yield the work of ``second`` that does not wait for all that was launched before it on ``first``."""
        earlier = self.streams[first]
        launched = [work.correlation for work in earlier]
        ends = list(accumulate((work.end for work in earlier), max))
        for work in self.streams[second]:
            begin, end = work.behind.get(first, 0), bisect_right(launched, work.correlation)
            if begin < end:
                running = max(begin, bisect_right(ends, work.start))
                overlapped = running < end and earlier[running].start < work.end
                yield Unordered(earlier[running if overlapped else end - 1], work, overlapped)


def read(trace: KinetoTrace) -> Order:
    """Return the order of the trace's work. Raises :class:`TraceError` if a field that makes it is no number."""
    return _Reading(trace).order


class _Reading:
    def __init__(self, trace: KinetoTrace) -> None:
        calls = {whole(call, "correlation"): call for call in trace.of(*CALLS) if "correlation" in args(call)}
        if len(processes := {str(call.get("pid")) for call in calls.values()}) > 1:
            raise TraceError(f"{trace.path} has the calls of {len(processes)} processes: name the trace of one rank")
        self.order = Order()
        self._calls = calls
        self._done: dict[KinetoStream, _Clock] = defaultdict(dict)  # before the stream's next work, in other streams
        self._known: dict[Any, _Clock] = defaultdict(dict)  # to a thread of the host
        syncs = trace.of(SYNCS)
        self._marks: dict[_Mark, _Clock] = {}
        syncs = trace.of(SYNCS)
        steps: list[tuple[int, float, Event | _Mark]] = []
        steps += [(mark.number, 0.0, mark) for mark in {_mark(sync) for sync in syncs} if mark]
        steps += [(whole(sync, "correlation"), 0.0, sync) for sync in syncs]
        steps += [(whole(work, "correlation"), time(work, "ts"), work) for work in trace.of(*WORK)]
        for number, start, step in sorted(steps, key=lambda step: step[:2]):
            if isinstance(step, _Mark):
                self._behind(step.stream, number)
                self._marks[step] = self._position(step.stream)
            elif step["cat"] == SYNCS:
                self._sync(number, step)
            else:
                self._work(number, start, step)
        self.order.streams = dict(sorted(self.order.streams.items()))

    def _work(self, number: int, start: float, event: Event) -> None:
        stream = _stream(event)
        works = self.order.streams.setdefault(stream, [])
        behind = self._behind(stream, number)
        end = start + time(event, "dur")
        works.append(KinetoWork(stream, len(works), number, event, start, end, self._calls.get(number), behind))

    def _sync(self, number: int, event: Event) -> None:
        """Let a stream or the calling thread wait for an event, a stream or a GPU."""
        name, mark = event.get("name"), _mark(event)
        if name == "Event Sync" and self._calls.get(number, {}).get("name") in QUERIES:
            return  # the answer is not in the trace
        if name == "Context Sync":
            device = whole(event, "device")
            for stream in [stream for stream in {*self.order.streams, *self._done} if stream.device == device]:
                self._tell(number, self._position(stream))
        elif name == "Stream Sync":
            self._tell(number, self._position(_stream(event)))
        elif mark is None:
            self.order.unresolved[str(name)] += 1
        elif name == "Stream Wait Event":
            stream = _stream(event)
            self._done[stream] = _joined(self._behind(stream, number), self._marks[mark])
            self.order.waits[mark.stream, stream] += 1
        else:
            self._tell(number, self._marks[mark])

    def _tell(self, number: int, done: _Clock) -> None:
        """Let the thread that made the call know what is done; nothing if the trace does not have the call."""
        if (thread := self._thread(number)) is not None:
            self._known[thread] = _joined(self._known[thread], done)

    def _thread(self, number: int) -> Any:
        call = self._calls.get(number)
        return None if call is None else str(call.get("tid"))

    def _behind(self, stream: KinetoStream, number: int) -> _Clock:
        """Give the call to the stream; return what is done before it, apart from the stream's own work."""
        thread = self._thread(number)
        if thread is not None:
            self._done[stream] = _joined(self._done[stream], self._known[thread])
        return self._done[stream]

    def _position(self, stream: KinetoStream) -> _Clock:
        """Return what is done when the stream has done all that it was given."""
        return {**self._done[stream], stream: len(self.order.streams.get(stream, ()))}


def _stream(event: Event, name: str = "stream") -> KinetoStream:
    return KinetoStream(whole(event, "device"), whole(event, name))


def _mark(sync: Event) -> _Mark | None:
    """Return the position for which the event stands; None if there is no event, or the trace does not tell which."""
    # Kineto's releases before September 2023 name neither the stream nor the call.
    if sync.get("name") not in ("Stream Wait Event", "Event Sync") or RECORDED not in args(sync):
        return None
    number, stream = whole(sync, RECORDED), _stream(sync, "wait_on_stream")
    # It has -1 for an event that was recorded before the trace began or for another GPU, and in older releases the
    # last record of the event, which may have come after the wait.
    return _Mark(number, stream) if 0 <= number < whole(sync, "correlation") and stream.number >= 0 else None


def _joined(one: _Clock, other: _Clock) -> _Clock:
    """Return the later of both for each stream; the very same clock if it is ``one``, as clocks are never changed."""
    if all(one.get(stream, 0) >= done for stream, done in other.items()):
        return one
    return {**one, **{stream: max(done, one.get(stream, 0)) for stream, done in other.items()}}
