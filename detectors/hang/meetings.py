"""Follows the collectives of all ranks: which calls meet, whether they agree, and in which order each rank issues them.

**The queue.** A second rule is checked beside that of equal calls: would the program come to its end if each GPU ran
NCCL's kernels one after the other, in the order in which its host issued them? That is all that NCCL promises for
several communicators. So each rank has a queue of its collectives. One takes place when it is at the front on all its
ranks; collectives between ncclGroupStart and ncclGroupEnd are at the front together. If a collective is behind another
on one rank, that one behind a third on another rank, and so on back to the first, none of them ever comes to the front:
a *circle*. It is reported, and its first collective takes place all the same, so that later ones are found.

A collective that some of its ranks have not issued yet proves nothing, so circles are found among those that all have.
A process that uses several GPUs has a queue for the first, and one for each communicator of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from streamrace.trace.calls import differences, parsed

Key = tuple[int, int]
"""The numbers of a group and of a collective in it."""


@dataclass
class Part:
    """A rank's part in a collective: its call as text, and the number of its stack."""

    rank: int
    kernel: str
    call: str
    stack: int


@dataclass(eq=False)
class Meeting:
    """A collective, with the parts that were issued by now."""

    key: Key
    members: tuple[int, ...]
    lane: int = 0
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.parts) == len(self.members)

    def mismatch(self) -> tuple[int, int, tuple[str, ...]] | None:
        """Return the first two ranks whose calls differ, and in which properties; None if all agree."""
        if self.complete and len({part.call for part in self.parts.values()}) == 1 and not self._uneven():
            return None
        ranks = [rank for rank in self.members if rank in self.parts]
        calls = {rank: parsed(self.parts[rank].call) for rank in ranks}
        for at, rank in enumerate(ranks):
            own = calls[rank]
            for other in ranks[at + 1 :] if at == 0 or self._uneven() else ():
                theirs = calls[other]
                if own is None or theirs is None:
                    continue
                differing = differences(own.to(self.members.index(other)), theirs.to(self.members.index(rank)))
                if differing:
                    return rank, other, tuple(differing)
        return None

    def _uneven(self) -> bool:
        """Check whether a rank gives others different sizes, so that each two ranks must be compared."""
        calls = [parsed(part.call) for part in self.parts.values()]
        return any(len({*call.gives}) > 1 or len({*call.takes}) > 1 for call in calls if call is not None)


@dataclass(frozen=True)
class Behind:
    """On ``rank``, ``later`` cannot take place before ``earlier``, which was issued before."""

    rank: int
    earlier: Meeting
    later: Meeting


class Meetings:
    """All collectives that have not taken place yet."""

    def __init__(self) -> None:
        self.open: dict[Key, Meeting] = {}
        self.common: dict[int, Meeting] = {}  # by group: the last one before which all ranks agreed
        self._differing: set[int] = set()  # groups of which ranks have made different calls
        self._queues: dict[tuple[int, int], deque[list[Meeting]]] = {}  # by rank and lane: batches as they were issued

    def ahead(self, rank: int) -> int:
        """Return how many batches of the rank wait in its queue."""
        return len(self._queues.get((rank, 0), ()))

    def issue(
        self, key: Key, members: Sequence[int], part: Part, *, joined: bool, lane: int = 0
    ) -> Iterator[list[Behind]]:
        """Add a rank's part. Yield each circle that it closes. ``lane``: of the queue; 0 for the first GPU."""
        meeting = self.open.setdefault(key, Meeting(key, tuple(members), lane))
        meeting.parts[part.rank] = part
        queue = self._queues.setdefault((part.rank, lane), deque())
        if joined and queue:
            queue[-1].append(meeting)
        else:
            queue.append([meeting])
        if meeting.complete and meeting.mismatch() is None:
            if key[0] not in self._differing:
                self.common[key[0]] = meeting
            yield from self._settle([meeting])
        elif meeting.complete:
            self._differing.add(key[0])

    def _settle(self, candidates: list[Meeting]) -> Iterator[list[Behind]]:
        while candidates:
            meeting = candidates.pop()
            if not meeting.complete or meeting.key not in self.open:
                continue
            if not all(meeting in self._queues[rank, meeting.lane][0] for rank in meeting.members):
                circle = self._circle(meeting)
                if circle is None:
                    continue
                yield circle
            candidates += self._take_place(meeting)

    def _take_place(self, meeting: Meeting) -> list[Meeting]:
        """Remove the collective from all queues; return those that have come to the front."""
        del self.open[meeting.key]
        come: list[Meeting] = []
        for rank in meeting.members:
            queue = self._queues[rank, meeting.lane]
            batch = next(batch for batch in queue if meeting in batch)
            batch.remove(meeting)
            if batch:
                continue
            if batch is queue[0]:
                queue.popleft()
                come += queue[0] if queue else ()
            else:  # of a circle
                queue.remove(batch)  # the only empty one
        return come

    def _circle(self, first: Meeting) -> list[Behind] | None:
        """Return the shortest way from the collective, by those it is behind, back to itself, if there is one."""
        seen: set[Key] = set()
        ways: deque[tuple[Meeting, list[Behind]]] = deque([(first, [])])
        while ways:
            meeting, way = ways.popleft()
            for rank in meeting.members if meeting.complete else ():
                for earlier in self._front(rank, meeting):
                    step = [*way, Behind(rank, earlier, meeting)]
                    if earlier is first:
                        return step
                    if earlier.key not in seen:
                        seen.add(earlier.key)
                        ways.append((earlier, step))
        return None

    def _front(self, rank: int, meeting: Meeting) -> list[Meeting]:
        """Return all that is before the collective in the rank's queue."""
        earlier: list[Meeting] = []
        for batch in self._queues[rank, meeting.lane]:
            if meeting in batch:
                return earlier
            earlier += batch
        return earlier
