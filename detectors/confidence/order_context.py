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
        self._race, self._one = race, occurrence
        self._work: dict[int, tuple[int, int, str, int, int]] = {}  # by event: rank, op, kernel, stream, stack
        self._of: list[tuple[int, int]] = []  # rank and stream of each event
        self._memory = _Memory(occurrence)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            super().feed(rank, (record,))
            stream = _HOST if isinstance(record, HostWait) else getattr(record, "stream", _HOST)
            self._of += [(rank, stream)] * (len(self._ahead) - len(self._of))
            if isinstance(record, (Launch, Collective)):
                for event in self._ranks[rank].works[record.op]:
                    self._work[event] = rank, record.op, record.kernel, record.stream, record.stack
            if rank == self._one.rank:
                self._memory.feed(record)

    def around(self) -> Around | None:
        """Return the order around the occurrence, or None if its work is not in these traces."""
        self._meet()
        state = self._ranks.get(self._one.rank)
        first = self._event_of(self._one.first.op, self._race.first.access)
        if state is None or first is None:
            return None
        back = self._back()
        second = self._event_of(self._one.second.op, self._race.second.access)
        before = _closure(back, first)
        if second is None:  # a free is no work, and has no event in the graph
            behind = self._behind(first, before, -1)
            return Around(behind, (), None, None, None, (self._of[first][1], -1), self._handed())
        streams = self._of[first][1], self._of[second][1]
        also = _closure(back, second)
        behind = self._behind(first, before, streams[1])
        other = self._behind(second, also, streams[0])
        known = max((one for one in also if self._of[one] == self._of[first] and self._other(one)), default=None)
        return Around(
            behind,
            other,
            self._common(first, second, before, also, back),
            None if known is None else self._link(known, second, also),
            self._late(first, second),
            streams,
            self._handed(),
        )

    def _event_of(self, op: int | None, access: str) -> int | None:
        state = self._ranks.get(self._one.rank)
        found = state.works.get(op) if state is not None and op is not None else None
        return None if found is None else found[access != "read"]

    def _other(self, event: int) -> bool:
        """Check for an event of other work than the pair's. (Other ranks may know only a collective's beginning.)"""
        one = self._one
        rank, op = self._work.get(event, (-1, -1, "", 0, 0))[:2]
        return event in self._work and (rank != one.rank or op not in (one.first.op, one.second.op))

    def _named(self, event: int) -> TracedWork:
        rank, op, kernel, stream, stack = self._work[event]
        state = self._ranks[rank]
        frame = site(state.frames.get(stack, ()))
        if frame is not None:  # a trace may hold any type
            frame = Frame(str(frame.file), int(frame.line), str(frame.function))
        return TracedWork(rank, op, str(kernel), str(state.names.get(stream, f"stream {stream}")), frame, stream)

    def _link(self, start: int, goal: int, within: set[int]) -> Behind:
        return Behind(self._named(start), _plain(self._cheapest(start, goal, within)))

    def _back(self) -> list[list[int]]:
        """Return the preceding events of each event."""
        found: list[list[int]] = [[] for _ in self._ahead]
        for event, edges in enumerate(self._ahead):
            for ahead, _ in edges:
                found[ahead].append(event)
        return found

    def _behind(self, event: int, before: set[int], wanted: int) -> tuple[Behind, ...]:
        """Return the last work that an access comes behind, of its own stream and of a few others; the stream
        ``wanted`` is among these if the access comes behind any of its work.
        """
        rank, stream = self._of[event]
        last: dict[int, int] = {}
        for one in before:
            if self._of[one][0] == rank and self._other(one):
                of = self._of[one][1]
                last[of] = max(one, last.get(of, one))
        own = [last.pop(stream)] if stream in last else []
        others = sorted(last.items(), key=lambda item: (item[0] == wanted, item[1]), reverse=True)
        told = [*own, *[one for _, one in others[:_STREAMS]]]
        return tuple(self._link(one, event, before) for one in told)

    def _common(
        self, first: int, second: int, before: set[int], also: set[int], back: Sequence[Sequence[int]]
    ) -> tuple[Behind, Behind] | None:
        """Return the last issued work that both come behind and that precedes no other such work, with its links."""
        both = before & also
        ends = [one for one in both if not any(ahead in both for ahead, _ in self._ahead[one])]
        works: set[int] = set()
        seen: set[int] = set(ends)
        open_ = list(ends)
        while open_:  # waits and records are no work: go back to the work before them
            one = open_.pop()
            if self._other(one):
                works.add(one)
                continue
            new = set(back[one]) - seen
            seen |= new
            open_ += new
        if not works:
            return None
        rank = self._one.rank
        it = max(works, key=lambda one: (self._work[one][0] == rank, self._work[one][1]))
        return self._link(it, first, before), self._link(it, second, also)

    def _late(self, first: int, second: int) -> tuple[Link, ...] | None:
        """Return the links to the first event of the second's stream, or of the host, behind the first access."""
        ahead = _closure([[to for to, _ in edges] for edges in self._ahead], first)
        rank, stream = self._of[second]
        for of in ((rank, stream), (rank, _HOST)):
            there = [one for one in ahead if self._of[one] == of and one > second]
            if there:
                return _plain(self._cheapest(first, min(there)))
        return None

    def _handed(self) -> Handed | None:
        memory = self._memory
        former = memory.former()
        if former is None:
            return None
        state = self._ranks[self._one.rank]

        def name(stream: int) -> str:
            return str(state.names.get(stream, f"stream {stream}"))

        op = memory.freed_behind.get(former)
        event = self._event_of(op, "write")
        owner = memory.owners.get(former)
        return Handed(
            "" if owner is None else name(owner),
            tuple(name(one) for one in memory.recorded.get(former, ())),
            None if event is None else self._named(event),
        )


class _Memory:
    """Follows the owners of an occurrence's memory through its rank's records."""

    def __init__(self, occurrence: Occurrence) -> None:
        self._one = occurrence
        self.owners: dict[int, int] = {}
        self.recorded: dict[int, list[int]] = {}
        self.freed_behind: dict[int, int | None] = {}  # the last work issued before a block was freed
        self._touched: set[int] = set()  # blocks of the first access
        self._formers: dict[int, list[int]] = {}
        self._last: int | None = None

    def feed(self, record: TraceRecord) -> None:
        if isinstance(record, (Launch, Collective)):
            self._last = record.op
            if record.op == self._one.first.op:
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
        block = self._one.block
        if self._one.second.op is None:
            return block
        seen, open_ = {block}, [block]
        while open_:
            one = open_.pop(0)
            if one != block and one in self._touched:
                return one
            new = [former for former in self._formers.get(one, ()) if former not in seen]
            seen.update(new)
            open_ += new
        return None


def _plain(links: Iterable[Link] | None) -> tuple[Link, ...]:
    return tuple(Link(str(one.what), str(one.file), int(one.line)) for one in links or ())


def _closure(edges: Sequence[Sequence[int]], start: int) -> set[int]:
    """Return all events reachable from an event, itself included."""
    seen, open_ = {start}, [start]
    while open_:
        for one in edges[open_.pop()]:
            if one not in seen:
                seen.add(one)
                open_.append(one)
    return seen
