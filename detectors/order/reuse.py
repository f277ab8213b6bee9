"""Finds races between the former owners of freed memory and its next owner.

torch's caching allocator hands a freed block out again on the stream it was allocated on, at once and without any wait
(c10/cuda/CUDACachingAllocator.cpp). Neither the free nor the new allocation touches the memory: only the work of
the new owner does. So an access of the former owner races with an access of the new one, byte by byte, by the same
rule as any two accesses of one block: a race is report if and only if no synchronisation orders the two.

``record_stream`` makes the allocator wait, before it hands out the memory, for events on the named streams, recorded
at the free: the work before such an event comes before *every* new owner. The program does not learn of that wait, so
it orders no other memory.

**What is dropped.** A former access that a new owner's access comes after and covers: whatever races with
the former access later races with the new one, which is in the new block's history. Also a former access that has
raced: only its race with the first such access of the new owner is report, as later ones have the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamrace.detectors.order.access_history import Accesses, AccessHistory, Entry
from streamrace.detectors.order.clocks import HostClock, Snapshot, Vector
from streamrace.detectors.order.overlap import cut, overlap, whole
from streamrace.trace.records import Reuse

Found = tuple[list[Entry], list[Entry]]
"""The reads and the writes with which an access races."""


class Inheritance(Accesses):
    """Accesses of the former owners of a block's memory, in the block's own bytes.

    ``stack`` is that of the allocation that got the memory again.
    """

    __slots__ = ("stack",)

    def __init__(self, stack: int) -> None:
        super().__init__()
        self.stack = stack

    def __bool__(self) -> bool:
        return not (self.reads.empty and self.writes.empty)

    def met(self, entry: Entry, known: Vector, *, write: bool) -> Found:
        """Return the former reads and writes that race with a new access; drop these and those it makes redundant."""
        return _meet(self.reads, entry, known, True, write), _meet(self.writes, entry, known, write, True)


def _meet(history: AccessHistory, entry: Entry, known: Vector, redundant: bool, report: bool) -> list[Entry]:
    """Return the races. ``redundant``: drop entries ordered before and covered; ``report``: unordered entries race."""
    lo, hi, layout, thread, _, _, _ = entry
    races: list[Entry] = []
    dropped: list[Entry] = []
    for old in history.search(lo, hi):
        old_lo, old_hi, old_layout, old_thread, epoch, _, _ = old
        if old_thread == thread or known[old_thread] >= epoch:
            if redundant and lo <= old_lo and old_hi <= hi and layout is None:
                dropped.append(old)
        elif report and overlap(old_lo, old_hi, old_layout, lo, hi, layout):
            races.append(old)
    if races or dropped:
        history.drop(races + dropped)
    return races


class Freed:
    """Freed blocks of one rank whose memory may still be handed out, each with its former owners' accesses."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Accesses, ...]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, number: int, accesses: tuple[Accesses, ...], awaited: Iterable[Snapshot]) -> None:
        """Keep the accesses that a next owner can race with. ``awaited``: positions that the allocator waits for."""
        for history in [history for owner in accesses for history in (owner.reads, owner.writes)]:
            for thread, epoch, known in awaited:
                past = [old for old in history.everything() if (epoch if old[3] == thread else known[old[3]]) >= old[4]]
                if past:
                    history.drop(past)
        self._blocks[number] = accesses

    def hand_out(self, reuse: Reuse, heir: Inheritance | None, host: HostClock) -> Inheritance | None:
        """Return the accesses that the new block inherits, added to ``heir``, or None if it can race with none.

        Whatever ``host`` has waited for comes before all work that is still to be launched.
        """
        former = self._blocks.pop(reuse.former, ()) if reuse.last else self._blocks.get(reuse.former, ())
        heir = heir or Inheritance(reuse.stack)
        for accesses in former:
            _inherit(heir.reads, accesses.reads, reuse, host)
            _inherit(heir.writes, accesses.writes, reuse, host)
        return heir or None


def _inherit(heir: AccessHistory, former: AccessHistory, reuse: Reuse, host: HostClock) -> None:
    """Put the parts of former accesses that lie in the memory handed out into ``heir``, in the new block's bytes."""
    by = reuse.lo - reuse.start
    adjacent = {_whole(old): old for old in heir.search(reuse.lo - 1, reuse.lo) if old[1] == reuse.lo}
    joined: list[Entry] = []
    pieces: list[Entry] = []
    for lo, hi, layout, thread, epoch, operation, phase in former.everything():
        start, end = max(lo + by, reuse.lo), min(hi + by, reuse.hi)
        if start >= end or host.known[thread] >= epoch:
            continue
        piece = (start, end, cut(layout, start - lo - by), thread, epoch, operation, phase)
        neighbour = adjacent.pop(_whole(piece), None) if start == reuse.lo else None
        if neighbour is not None:
            joined.append(neighbour)
            piece = (neighbour[0], end, *neighbour[2:])
        pieces.append(piece)
    if joined:
        heir.drop(joined)
    for piece in pieces:
        heir.put(piece, None)


def _whole(entry: Entry) -> tuple[object, ...]:
    """Return the key that all parts of one access share: adjacent parts with the same key are joined."""
    lo, _, layout, _, epoch, operation, _ = entry
    return id(operation), epoch, whole(lo, layout)
