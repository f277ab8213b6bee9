"""Finds every pair of accesses that no synchronisation orders, whether or not it shows in this timing.

The method is FastTrack's (Flanagan & Freund 2009) on the threads of torch's CSAN: one per stream, and the
host. The result is exact for the trace: a race is reported if and only if two accesses of
common bytes, one of them a write, are unordered by the transitive closure of the recorded order
(limits: :mod:`streamrace.detectors.order.overlap` for huge interleaved views, and crossed collectives, below).

**Crossed collectives.** A rank's records wait at a collective until all members' records of it have arrived.
If ranks issue collectives of *different* groups in different orders, without their hosts ever
waiting, they wait for each other here, and :meth:`HappensBefore.finish` goes on with the members that have
arrived. Less order is known then, so a race may be reported where none exists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from streamrace.detectors.order.clocks import Threads
from streamrace.detectors.order.rank import RankAccesses, Report
from streamrace.detectors.order.rendezvous import OpenCollective, OpenCollectives
from streamrace.trace.records import TraceRecord


class _Follower:
    """A rank, its remaining records, and the collective in which it waits."""

    __slots__ = ("queue", "rank", "waits_in")

    def __init__(self, rank: RankAccesses) -> None:
        self.rank = rank
        self.queue: deque[Iterator[TraceRecord]] = deque()
        self.waits_in: OpenCollective | None = None


class HappensBefore:
    """Reports each occurrence of a race. Accepts the ranks' records in any interleaving; the races are the same."""

    def __init__(self, report: Report) -> None:
        self._threads = Threads()
        self._collectives = OpenCollectives()
        self._report = report
        self._followers: dict[int, _Follower] = {}
        self._finished = False

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``'s trace.

        Raises :class:`streamrace.trace.records.TraceError` for inconsistent records, ValueError after :meth:`finish`.
        """
        if self._finished:
            raise ValueError("the traces are finished; use a new detector")
        follower = self._follower(rank)
        follower.queue.append(iter(records))
        self._advance(follower)
        if follower.queue:  # records behind a collective that other members have not reached
            follower.queue[-1] = iter(list(follower.queue[-1]))

    def finish(self) -> None:
        """End the input: follow ranks that wait for a missing member as far as possible without it.

        Further calls do nothing.
        """
        self._finished = True
        while waiting := {rank: call for rank in sorted(self._followers) if (call := self._followers[rank].waits_in)}:
            # First collectives whose missing members have no records left: nobody can join them any more.
            hopeless = [collective for collective in waiting.values() if not collective.missing.intersection(waiting)]
            collective = (hopeless or list(waiting.values()))[0]
            collective.forced = True
            self._release(collective)

    def waits(self, rank: int) -> bool:
        """Check whether ``rank``'s records are held up at a collective that other members have not reached."""
        follower = self._followers.get(rank)
        return follower is not None and follower.waits_in is not None

    def settle(self) -> None:
        """Name the bytes of the races so far."""
        for follower in self._followers.values():
            follower.rank.settle()

    @property
    def live_state(self) -> int:
        """Return how many blocks, markers and open collectives are kept, as a measure of memory."""
        return self._collectives.open + sum(follower.rank.live_state for follower in self._followers.values())

    def _follower(self, rank: int) -> _Follower:
        follower = self._followers.get(rank)
        if follower is None:
            follower = _Follower(RankAccesses(rank, self._threads, self._collectives, self._report))
            self._followers[rank] = follower
        return follower

    def _advance(self, follower: _Follower) -> None:
        """Follow the rank, and all ranks it releases, until each waits or has no records left."""
        ready = [follower]
        while ready:
            current = ready.pop()
            while current.waits_in is None and current.queue:
                record = current.rank.run(current.queue[0])
                if record is None:
                    current.queue.popleft()
                    continue
                rank = current.rank.rank
                collective = self._collectives.arrive(rank, current.rank.begin_collective(record))
                current.waits_in = collective
                if collective.complete:
                    ready += [freed for freed in self._leave(collective) if freed is not current]

    def _release(self, collective: OpenCollective) -> None:
        for follower in self._leave(collective):
            self._advance(follower)

    def _leave(self, collective: OpenCollective) -> list[_Follower]:
        """End the collective for all ranks that wait in it."""
        released = []
        for rank in sorted(collective.arrivals):
            follower = self._followers[rank]
            if follower.waits_in is collective:
                follower.waits_in = None
                follower.rank.end_collective(collective.arrivals[rank].record, collective.outcome(rank))
                released.append(follower)
        return released
