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
class IssuedCall:
    """A rank's part in a collective: its call as text, and the number of its stack."""

    rank: int
    kernel: str
    call: str
    stack: int


@dataclass(eq=False)
class IssuedCollective:
    """A collective, with the parts that were issued by now."""

    key: Key
    members: tuple[int, ...]
    lane: int = 0
    parts: dict[int, IssuedCall] = field(default_factory=dict)

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
class QueuedBehind:
    """On ``rank``, ``later`` cannot take place before ``earlier``, which was issued before."""

    rank: int
    earlier: IssuedCollective
    later: IssuedCollective


class IssuedCollectives:
    """All collectives that have not taken place yet."""

    def __init__(self) -> None:
        self.open: dict[Key, IssuedCollective] = {}
        self.common: dict[int, IssuedCollective] = {}  # by group: the last one before which all ranks agreed
        self._differing: set[int] = set()  # groups of which ranks have made different calls
        self._queues: dict[
            tuple[int, int], deque[list[IssuedCollective]]
        ] = {}  # by rank and lane: batches as they were issued

    def ahead(self, rank: int) -> int:
        """Return how many batches of the rank wait in its queue."""
        return len(self._queues.get((rank, 0), ()))

    def issue(
        self, key: Key, members: Sequence[int], part: IssuedCall, *, joined: bool, lane: int = 0
    ) -> Iterator[list[QueuedBehind]]:
        """Add a rank's part. Yield each circle that it closes. ``lane``: of the queue; 0 for the first GPU."""
        collective = self.open.setdefault(key, IssuedCollective(key, tuple(members), lane))
        collective.parts[part.rank] = part
        queue = self._queues.setdefault((part.rank, lane), deque())
        if joined and queue:
            queue[-1].append(collective)
        else:
            queue.append([collective])
        if collective.complete and collective.mismatch() is None:
            if key[0] not in self._differing:
                self.common[key[0]] = collective
            yield from self._settle([collective])
        elif collective.complete:
            self._differing.add(key[0])

    def _settle(self, candidates: list[IssuedCollective]) -> Iterator[list[QueuedBehind]]:
        while candidates:
            collective = candidates.pop()
            if not collective.complete or collective.key not in self.open:
                continue
            if not all(collective in self._queues[rank, collective.lane][0] for rank in collective.members):
                circle = self._circle(collective)
                if circle is None:
                    continue
                yield circle
            candidates += self._take_place(collective)

    def _take_place(self, collective: IssuedCollective) -> list[IssuedCollective]:
        """Remove the collective from all queues; return those that have come to the front."""
        del self.open[collective.key]
        come: list[IssuedCollective] = []
        for rank in collective.members:
            queue = self._queues[rank, collective.lane]
            batch = next(batch for batch in queue if collective in batch)
            batch.remove(collective)
            if batch:
                continue
            if batch is queue[0]:
                queue.popleft()
                come += queue[0] if queue else ()
            else:  # of a circle
                queue.remove(batch)  # the only empty one
        return come

    def _circle(self, first: IssuedCollective) -> list[QueuedBehind] | None:
        """Return the shortest way from the collective, by those it is behind, back to itself, if there is one."""
        seen: set[Key] = set()
        ways: deque[tuple[IssuedCollective, list[QueuedBehind]]] = deque([(first, [])])
        while ways:
            collective, way = ways.popleft()
            for rank in collective.members if collective.complete else ():
                for earlier in self._front(rank, collective):
                    step = [*way, QueuedBehind(rank, earlier, collective)]
                    if earlier is first:
                        return step
                    if earlier.key not in seen:
                        seen.add(earlier.key)
                        ways.append((earlier, step))
        return None

    def _front(self, rank: int, collective: IssuedCollective) -> list[IssuedCollective]:
        """Return all that is before the collective in the rank's queue."""
        earlier: list[IssuedCollective] = []
        for batch in self._queues[rank, collective.lane]:
            if collective in batch:
                return earlier
            earlier += batch
        return earlier
