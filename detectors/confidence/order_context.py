"""Describes the order around two accesses that race, as an engineer would look for it.

Happens-before (:mod:`streamrace.detectors.order`) proves that nothing orders the two accesses; this module shows the
order that exists: backwards from each access to the work that it comes behind, and forwards from the first access to
the wait on the second's side that comes too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamrace.detectors.confidence.chains import Link, OrderGraph
from streamrace.detectors.order.races import Occurrence, Race, site
from streamrace.trace.records import Alloc, Collective, Frame, Free, HostWait, Launch, RecordStream, Reuse, TraceRecord

_HOST = -1  # stands for the host among the numbers of streams
_STREAMS = 2  # other streams whose last preceding work is reported


class TracedWork(NamedTuple):
    """A launch or a collective. ``op``: its number in the trace of ``rank``; ``number``: that of its stream."""

    rank: int
    op: int
    kernel: str
    stream: str
    frame: Frame | None
    number: int = -1


class Behind(NamedTuple):
    """An access comes behind this ``work`` and all earlier work of its stream, through these ``links``.

    No links: the work is of the same stream.
    """

    work: TracedWork
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Handed:
    """Memory that passed from one owner to the next. ``owner``: the stream that the allocator follows; ``recorded``:
    the streams named by ``record_stream``. ``before``: the last work that the host issued before it freed the memory.
    """

    owner: str
    recorded: tuple[str, ...]
    before: TracedWork | None


@dataclass(frozen=True)
class Around:
    """``first``, ``second``: the work that each access comes behind, its own stream before others, the later before the
    earlier; ``streams``: the numbers of the accesses' streams (-1: none).

    ``common``: the last work that both come behind, with the links to each; None: no such work. ``known``: the last
    work of the first's stream that the second comes behind. ``late``: the links by which the second's stream, or else
    the host, waits for the first access, too late for the second; None: neither ever waits. ``handed``: set for memory
    that changed its owner.
    """

    first: tuple[Behind, ...]
    second: tuple[Behind, ...]
    common: tuple[Behind, Behind] | None
    known: Behind | None
    late: tuple[Link, ...] | None
    streams: tuple[int, int]
    handed: Handed | None


class OrderAround(OrderGraph):
    """Reads a run for :meth:`around`: :meth:`feed` it all ranks' records, each rank's in order.

    ``race`` and ``occurrence``: the pair of accesses to describe.
    """

    def __init__(self, race: Race, occurrence: Occurrence) -> None:
        super().__init__()
        self._race, self._occurrence = race, occurrence
        self._work: dict[int, tuple[int, int, str, int, int]] = {}  # by event: rank, op, kernel, stream, stack
        self._at: list[tuple[int, int]] = []  # rank and stream of each event
        self._memory = _Memory(occurrence)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            super().feed(rank, (record,))
            stream = _HOST if isinstance(record, HostWait) else getattr(record, "stream", _HOST)
            self._at += [(rank, stream)] * (len(self._ahead) - len(self._at))
            if isinstance(record, (Launch, Collective)):
                for event in self._ranks[rank].works[record.op]:
                    self._work[event] = rank, record.op, record.kernel, record.stream, record.stack
            if rank == self._occurrence.rank:
                self._memory.feed(record)

    def around(self) -> Around | None:
        """Return the order around the occurrence, or None if its work is not in these traces."""
        self._meet()
        state = self._ranks.get(self._occurrence.rank)
        first = self._event_of(self._occurrence.first.op, self._race.first.access)
        if state is None or first is None:
            return None
        back = self._preceding()
        second = self._event_of(self._occurrence.second.op, self._race.second.access)
        first_past = _closure(back, first)
        if second is None:  # a free is no work, and has no event in the graph
            of_first = self._preceding_work(first, first_past, -1)
            return Around(of_first, (), None, None, None, (self._at[first][1], -1), self._handed())
        streams = self._at[first][1], self._at[second][1]
        second_past = _closure(back, second)
        of_first = self._preceding_work(first, first_past, streams[1])
        of_second = self._preceding_work(second, second_past, streams[0])
        known = max((ev for ev in second_past if self._at[ev] == self._at[first] and self._is_other(ev)), default=None)
        return Around(
            of_first,
            of_second,
            self._common(first, second, first_past, second_past, back),
            None if known is None else self._link(known, second, second_past),
            self._late_links(first, second),
            streams,
            self._handed(),
        )

    def _event_of(self, op: int | None, access: str) -> int | None:
        state = self._ranks.get(self._occurrence.rank)
        events = state.works.get(op) if state is not None and op is not None else None
        return None if events is None else events[access != "read"]

    def _is_other(self, event: int) -> bool:
        """Check for an event of other work than the pair's. (Other ranks may know only a collective's beginning.)"""
        pair = self._occurrence
        rank, op = self._work.get(event, (-1, -1, "", 0, 0))[:2]
        return event in self._work and (rank != pair.rank or op not in (pair.first.op, pair.second.op))

    def _traced_work(self, event: int) -> TracedWork:
        rank, op, kernel, stream, stack = self._work[event]
        state = self._ranks[rank]
        frame = site(state.frames.get(stack, ()))
        if frame is not None:  # a trace may hold any type
            frame = Frame(str(frame.file), int(frame.line), str(frame.function))
        return TracedWork(rank, op, str(kernel), str(state.names.get(stream, f"stream {stream}")), frame, stream)

    def _link(self, start: int, goal: int, within: set[int]) -> Behind:
        return Behind(self._traced_work(start), _builtin_links(self._cheapest(start, goal, within)))

    def _preceding(self) -> list[list[int]]:
        """Return the preceding events of each event."""
        preceding: list[list[int]] = [[] for _ in self._ahead]
        for event, edges in enumerate(self._ahead):
            for ahead, _ in edges:
                preceding[ahead].append(event)
        return preceding

    def _preceding_work(self, event: int, ahead: set[int], wanted: int) -> tuple[Behind, ...]:
        """Return the last work that an access comes behind, of its own stream and of a few others; the stream
        ``wanted`` is among these if the access comes behind any of its work.
        """
        rank, stream = self._at[event]
        last: dict[int, int] = {}
        for candidate in ahead:
            if self._at[candidate][0] == rank and self._is_other(candidate):
                number = self._at[candidate][1]
                last[number] = max(candidate, last.get(number, candidate))
        own_stream = [last.pop(stream)] if stream in last else []
        other_streams = sorted(last.items(), key=lambda item: (item[0] == wanted, item[1]), reverse=True)
        reported = [*own_stream, *[last_event for _, last_event in other_streams[:_STREAMS]]]
        return tuple(self._link(last_event, event, ahead) for last_event in reported)

    def _common(
        self, first: int, second: int, first_past: set[int], second_past: set[int], back: Sequence[Sequence[int]]
    ) -> tuple[Behind, Behind] | None:
        """Return the last issued work that both come behind and that precedes no other such work, with its links."""
        common = first_past & second_past
        ends = [event for event in common if not any(ahead in common for ahead, _ in self._ahead[event])]
        works: set[int] = set()
        visited: set[int] = set(ends)
        open_ = list(ends)
        while open_:  # waits and records are no work: go back to the work before them
            event = open_.pop()
            if self._is_other(event):
                works.add(event)
                continue
            unvisited = set(back[event]) - visited
            visited |= unvisited
            open_ += unvisited
        if not works:
            return None
        rank = self._occurrence.rank
        last = max(works, key=lambda event: (self._work[event][0] == rank, self._work[event][1]))
        return self._link(last, first, first_past), self._link(last, second, second_past)

    def _late_links(self, first: int, second: int) -> tuple[Link, ...] | None:
        """Return the links to the first event of the second's stream, or of the host, behind the first access."""
        ahead = _closure([[to for to, _ in edges] for edges in self._ahead], first)
        rank, stream = self._at[second]
        for rank_and_stream in ((rank, stream), (rank, _HOST)):
            waits = [event for event in ahead if self._at[event] == rank_and_stream and event > second]
            if waits:
                return _builtin_links(self._cheapest(first, min(waits)))
        return None

    def _handed(self) -> Handed | None:
        memory = self._memory
        former = memory.former()
        if former is None:
            return None
        state = self._ranks[self._occurrence.rank]

        def name(stream: int) -> str:
            return str(state.names.get(stream, f"stream {stream}"))

        op = memory.freed_behind.get(former)
        event = self._event_of(op, "write")
        owner = memory.owners.get(former)
        return Handed(
            "" if owner is None else name(owner),
            tuple(name(number) for number in memory.recorded.get(former, ())),
            None if event is None else self._traced_work(event),
        )


class _Memory:
    """Follows the owners of an occurrence's memory through its rank's records."""

    def __init__(self, occurrence: Occurrence) -> None:
        self._occurrence = occurrence
        self.owners: dict[int, int] = {}
        self.recorded: dict[int, list[int]] = {}
        self.freed_behind: dict[int, int | None] = {}  # the last work issued before a block was freed
        self._touched: set[int] = set()  # blocks of the first access
        self._formers: dict[int, list[int]] = {}
        self._last: int | None = None

    def feed(self, record: TraceRecord) -> None:
        if isinstance(record, (Launch, Collective)):
            self._last = record.op
            if record.op == self._occurrence.first.op:
                self._touched = {block for block, *_ in (*record.reads, *record.writes)}
        elif isinstance(record, Alloc):
            self.owners[record.block] = record.stream
        elif isinstance(record, RecordStream):
            self.recorded.setdefault(record.block, []).append(record.stream)
        elif isinstance(record, Free):
            self.freed_behind[record.block] = self._last
        elif isinstance(record, Reuse):
            self._formers.setdefault(record.block, []).append(record.former)

    def former(self) -> int | None:
        """Return the block in which the first access touched the memory, if its owner changed before the second."""
        block = self._occurrence.block
        if self._occurrence.second.op is None:
            return block
        visited, open_ = {block}, [block]
        while open_:
            candidate = open_.pop(0)
            if candidate != block and candidate in self._touched:
                return candidate
            formers = [former for former in self._formers.get(candidate, ()) if former not in visited]
            visited.update(formers)
            open_ += formers
        return None


def _builtin_links(links: Iterable[Link] | None) -> tuple[Link, ...]:
    return tuple(Link(str(link.what), str(link.file), int(link.line)) for link in links or ())


def _closure(edges: Sequence[Sequence[int]], start: int) -> set[int]:
    """Return all events reachable from an event, itself included."""
    reachable, open_ = {start}, [start]
    while open_:
        for target in edges[open_.pop()]:
            if target not in reachable:
                reachable.add(target)
                open_.append(target)
    return reachable
