"""Finds the shortest chain of order between two pieces of work: the waits that put one after the other.

The edges are those of happens-before (:mod:`streamrace.detectors.order`): from work to later work of its stream, from
the host to what it issues, from a record to its waiters, between a collective's members. A chain's length is its number
of waits and collectives: stream order, and being issued later by the host, need no call and cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import NamedTuple

from streamrace.detectors.order.races import AccessKind, describe, site
from streamrace.detectors.streams import stream_named
from streamrace.trace import wording
from streamrace.trace.records import (
    Collective,
    Frame,
    Group,
    HostWait,
    Launch,
    Record,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
)


class Link(NamedTuple):
    """A call that is part of a chain. ``what``: a description without a full stop."""

    what: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.what} ({wording.line(self.file, self.line, path=True)})" if self.file else self.what


Touched = tuple[int, AccessKind]
"""An operation and its kind of access: a collective reads when it begins, and writes at its end."""


class OrderGraph:
    """The order of a run as a graph. :meth:`feed` it all ranks' records, each rank's in order.

    An event is a number. ``_ahead``: each event's edges to later events, with a link (cost 1) or None (cost 0).
    """

    def __init__(self) -> None:
        self._ahead: list[list[tuple[int, Link | None]]] = []
        self._ranks: dict[int, _Rank] = {}
        self._groups: dict[int, tuple[int, ...]] = {}
        self._collectives: dict[tuple[int, int], list[_Part]] = {}
        self._joined = 0

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        for record in records:
            if isinstance(record, Launch):
                state.works[record.op] = (self._on(state, record.stream),) * 2
            elif isinstance(record, Collective):
                self._collective(rank, state, record)
            elif isinstance(record, Record):
                state.markers[record.marker] = self._on(state, record.stream), record.stream
            elif isinstance(record, Wait):
                marked = state.markers.get(record.marker)
                waiting = self._on(state, record.stream)
                if marked is not None:
                    words = f"{state.name(record.stream)} waits for {state.name(marked[1])}"
                    self._edge(marked[0], waiting, state.link(words, record.stack))
            elif isinstance(record, HostWait):
                marked = state.markers.get(record.marker)
                host = self._event()
                if state.host is not None:
                    self._edge(state.host, host)
                state.host = host
                if marked is not None:
                    words = f"the host waits for {state.name(marked[1])}"
                    self._edge(marked[0], host, state.link(words, record.stack))
            elif isinstance(record, Stack):
                state.frames[record.id] = record.frames
            elif isinstance(record, StreamName):
                state.names[record.stream] = record.name
            elif isinstance(record, Group):
                self._groups[record.group] = record.ranks

    def chain(self, rank: int, first: Touched, second: Touched) -> tuple[Link, ...] | None:
        """Return the fewest waits and collectives that put the access ``second`` behind ``first``, both of ``rank``.
        None: nothing orders the two. Empty: the two are on one stream.
        """
        self._meet()
        works = self._ranks[rank].works
        if first[0] not in works or second[0] not in works:
            return None
        start, goal = (works[op][access != "read"] for op, access in (first, second))
        return self._cheapest(start, goal)

    def _cheapest(self, start: int, goal: int, within: Container[int] | None = None) -> tuple[Link, ...] | None:
        """Return the fewest links from one event to another. ``within``: use these events only."""
        arrivals: dict[int, tuple[int, Link | None]] = {start: (start, None)}
        cost = {start: 0}
        queue = deque([start])
        while queue:
            event = queue.popleft()
            if event == goal:
                break
            for ahead, link in self._ahead[event]:
                new_cost = cost[event] + (link is not None)
                if new_cost < cost.get(ahead, new_cost + 1) and (within is None or ahead in within):
                    cost[ahead], arrivals[ahead] = new_cost, (event, link)
                    queue.append(ahead) if link else queue.appendleft(ahead)
        if goal not in arrivals:
            return None
        links = []
        event = goal
        while event != start:
            event, link = arrivals[event]
            if link is not None:
                links.append(link)
        return tuple(reversed(links))

    def _event(self) -> int:
        self._ahead.append([])
        return len(self._ahead) - 1

    def _edge(self, before: int, behind: int, link: Link | None = None) -> None:
        self._ahead[before].append((behind, link))

    def _on(self, state: _Rank, stream: int) -> int:
        """Add an event of a stream: behind its last event, and behind what the host has waited for."""
        event = self._event()
        if stream in state.tails:
            self._edge(state.tails[stream], event)
        if state.host is not None:
            self._edge(state.host, event)
        state.tails[stream] = event
        return event

    def _collective(self, rank: int, state: _Rank, record: Collective) -> None:
        reads = self._on(state, record.stream)
        writes = self._on(state, record.stream)
        state.works[record.op] = reads, writes
        part = _Part(rank, record, reads, writes, state.frames.get(record.stack, ()))
        self._collectives.setdefault((record.group, record.number), []).append(part)

    def _meet(self) -> None:
        """Add the edges between the members of each collective (:mod:`streamrace.detectors.order.rendezvous`)."""
        for parts in self._collectives.values():
            for member in parts:
                for peer in parts:
                    if member.rank != peer.rank and _orders(member, peer):
                        words = f"{describe(member.record.kernel, ())} of rank {member.rank} with rank {peer.rank}"
                        frame = site(member.frames)
                        link = Link(words, frame.file, frame.line) if frame else Link(words)
                        self._edge(member.reads, peer.writes, link)
        self._collectives.clear()


class _Part(NamedTuple):
    """A rank's part of a collective."""

    rank: int
    record: Collective
    reads: int
    writes: int
    frames: tuple[Frame, ...]


def _orders(member: _Part, peer: _Part) -> bool:
    """Check whether this kind of collective orders ``peer``'s outputs behind ``member``'s inputs."""
    root, kernel = member.record.root, member.record.kernel
    if root < 0:
        return True
    if "send" in kernel or "recv" in kernel or "broadcast" in kernel or "scatter" in kernel:
        return member.rank == root
    return peer.rank == root if "reduce" in kernel or "gather" in kernel else True


class _Rank:
    def __init__(self) -> None:
        self.works: dict[int, tuple[int, int]] = {}  # the events at which an operation begins and ends
        self.markers: dict[int, tuple[int, int]] = {}
        self.tails: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.frames: dict[int, tuple[Frame, ...]] = {}
        self.host: int | None = None

    def name(self, stream: int) -> str:
        return stream_named(self.names.get(stream, f"stream {stream}"))

    def link(self, words: str, stack: int) -> Link:
        frame = site(self.frames.get(stack, ()))
        return Link(words, frame.file, frame.line) if frame else Link(words)
