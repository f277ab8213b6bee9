"""Finds every pair of accesses that no synchronisation orders, whether or not the timing made it show.

The method is FastTrack's (Flanagan & Freund 2009) on the threads of torch's CSAN: one per stream, and the
host. It is exact for what the trace says: a race is reported if and only if two accesses of
common bytes, one of them a write, are unordered by the transitive closure of the recorded order
(limits: :mod:`detectors.order.overlap` for huge interleaved views, and crossed collectives, below).

**Crossed collectives.** A rank's records wait at a collective until all members' records of it are there.
Ranks that issue collectives of *different* groups in different orders, without their hosts ever
waiting, could be followed only past that point; here they wait for each other, and :meth:`HappensBefore.finish`
goes on with the members that came. Less order is known then, so a race may be reported that is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from detectors.order.clocks import Threads
from detectors.order.races import Name, Race
from detectors.order.rank import Rank
from detectors.order.rendezvous import Meeting, Meetings
from detectors.order.tally import EXAMPLES, Tallies, Tally
from simgpu.trace import TraceRecord


class _Follower:
    """A rank, what is left of its records, and the collective it waits in."""

    __slots__ = ("meeting", "queue", "rank")

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.queue: deque[Iterator[TraceRecord]] = deque()
        self.meeting: Meeting | None = None


class HappensBefore:
    """The race detector. Feed it the ranks' records in any interleaving; the races are the same.

    ``examples``: how many occurrences of each race are kept (None: all).
    """

    def __init__(self, examples: int | None = EXAMPLES) -> None:
        self._threads = Threads()
        self._meetings = Meetings()
        self._tallies = Tallies(examples)
        self._followers: dict[int, _Follower] = {}
        self._finished = False

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``'s trace.

        Raises :class:`simgpu.trace.TraceError` where they make no sense, ValueError after :meth:`finish`.
        """
        if self._finished:
            raise ValueError("the detector was told that the traces are finished; use a new one")
        follower = self._follower(rank)
        follower.queue.append(iter(records))
        self._advance(follower)
        if follower.queue:  # what comes after a collective that the others have not reached
            follower.queue[-1] = iter(list(follower.queue[-1]))

    def finish(self) -> None:
        """No more records will come: follow ranks that wait for a member that never came as far as can be known.

        May be called again; further calls do nothing.
        """
        self._finished = True
        while waiting := [rank for rank in sorted(self._followers) if self._followers[rank].meeting is not None]:
            # First those whose missing members have nothing left to say: nobody can join them any more.
            hopeless = [rank for rank in waiting if not self._missing(rank).intersection(waiting)]
            meeting = self._followers[(hopeless or waiting)[0]].meeting
            assert meeting is not None
            meeting.forced = True
            self._release(meeting)

    def waits(self, rank: int) -> bool:
        """Whether ``rank``'s records are held up at a collective that other members have not reached."""
        follower = self._followers.get(rank)
        return follower is not None and follower.meeting is not None

    @property
    def count(self) -> int:
        """Occurrences of races so far."""
        return self._tallies.count

    @property
    def races(self) -> list[Race]:
        """The races so far, by rank and then in the order in which the host met them."""
        names: dict[Tally, set[Name]] = {}
        for follower in self._followers.values():
            for block in follower.rank.raced:
                for tally, lo, hi in block.pending or ():
                    if block.labels is not None:
                        names.setdefault(tally, set()).update(block.labels.of(lo, hi))
        return self._tallies.races(names)

    @property
    def live_state(self) -> int:
        """How many blocks, markers and open collectives are remembered: what memory is used for."""
        return self._meetings.open + sum(follower.rank.live_state for follower in self._followers.values())

    def _follower(self, rank: int) -> _Follower:
        follower = self._followers.get(rank)
        if follower is None:
            follower = _Follower(Rank(rank, self._threads, self._meetings, self._tallies))
            self._followers[rank] = follower
        return follower

    def _missing(self, rank: int) -> set[int]:
        meeting = self._followers[rank].meeting
        return set() if meeting is None else set(meeting.expected) - set(meeting.arrivals)

    def _advance(self, follower: _Follower) -> None:
        """Follow the rank, and all whom it releases, until each waits or has nothing left."""
        ready = [follower]
        while ready:
            current = ready.pop()
            while current.meeting is None and current.queue:
                collective = current.rank.run(current.queue[0])
                if collective is None:
                    current.queue.popleft()
                    continue
                rank = current.rank.rank
                meeting = self._meetings.arrive(rank, current.rank.begin_collective(collective))
                current.meeting = meeting
                if meeting.complete:
                    ready += [freed for freed in self._leave(meeting) if freed is not current]

    def _release(self, meeting: Meeting) -> None:
        for follower in self._leave(meeting):
            self._advance(follower)

    def _leave(self, meeting: Meeting) -> list[_Follower]:
        """End the collective for all who wait in it."""
        left = []
        for rank in sorted(meeting.arrivals):
            follower = self._followers[rank]
            if follower.meeting is meeting:
                follower.meeting = None
                follower.rank.end_collective(meeting.arrivals[rank].record, meeting.outcome(rank))
                left.append(follower)
        return left
