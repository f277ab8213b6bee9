"""Memory that was freed and handed out again: what its former owners still do to it.

torch's caching allocator hands a freed block out again on the stream it was allocated on, at once and without any wait
(c10/cuda/CUDACachingAllocator.cpp). The free itself touches nothing, nor does the new allocation: only the work of
the new owner does. So an access of the former owner races with an access of the new one, byte by byte, by the same
rule as any two accesses of one block: a race is reported if and only if no synchronisation orders the two.

What the allocator itself promises is taken as it is meant. ``record_stream`` makes it wait, before it hands out the
memory, for events on the named streams that stand at the free: whatever lies behind such an event comes before *every*
new owner, but the program learns nothing of it, so it orders no other memory.

**What is dropped.** A former access that a new owner's access comes after and covers: whatever races with
the former one later races with the new one, which has a history of its own. And one that has raced: the first access
of the new owner that meets it is named, as all later ones fail for the same reason.

Limit: where a strided access of a former owner lies only partly in the memory that is handed out, it is kept whole.
That matters where a third block had the other part in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from detectors.order.access_history import Block, Entry, Shelf
from detectors.order.clocks import Host, Snapshot, Vector
from detectors.order.overlap import overlap
from simgpu.trace import NOBODY, Reuse


class Inheritance:
    """Accesses of the former owners of a block's memory, in the block's own bytes.

    ``stack`` is that of the allocation that got the memory again.
    """

    __slots__ = ("reads", "stack", "writes")

    def __init__(self, stack: int) -> None:
        self.stack = stack
        self.reads = Shelf()
        self.writes = Shelf()

    def __bool__(self) -> bool:
        return not (self.reads.empty and self.writes.empty)

    def met(self, entry: Entry, known: Vector, *, write: bool) -> tuple[list[Entry], list[Entry]]:
        """The former reads and writes with which a new access races. They are dropped with what it makes redundant."""
        reads = _meet(self.reads, entry, known, redundant=True) if write else _covered(self.reads, entry, known)
        return reads, _meet(self.writes, entry, known, redundant=write)


def _meet(shelf: Shelf, entry: Entry, known: Vector, *, redundant: bool) -> list[Entry]:
    lo, hi, layout, thread, _, _, _ = entry
    races: list[Entry] = []
    dropped: list[Entry] = []
    for old in shelf.search(lo, hi):
        old_lo, old_hi, old_layout, other, epoch, _, _ = old
        if other == thread or known[other] >= epoch:
            if redundant and lo <= old_lo and old_hi <= hi and layout is None:
                dropped.append(old)
        elif overlap(old_lo, old_hi, old_layout, lo, hi, layout):
            races.append(old)
    if races or dropped:
        shelf.drop(races + dropped)
    return races


def _covered(shelf: Shelf, entry: Entry, known: Vector) -> list[Entry]:
    """Of two reads none races, but the newer one stands for the older."""
    lo, hi, layout, thread, _, _, _ = entry
    if layout is None:
        dropped = [
            old
            for old in shelf.search(lo, hi)
            if lo <= old[0] and old[1] <= hi and (old[3] == thread or known[old[3]] >= old[4])
        ]
        if dropped:
            shelf.drop(dropped)
    return []


class Freed:
    """Freed blocks of one rank whose memory may still be handed out."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, number: int, block: Block, awaited: Iterable[Snapshot]) -> None:
        """Keep what a next owner can race with. ``awaited``: positions that the allocator itself waits for."""
        for shelf in _shelves(block):
            for position in awaited:
                thread, epoch, known = position
                done = [old for old in shelf.everything() if (epoch if old[3] == thread else known[old[3]]) >= old[4]]
                if done:
                    shelf.drop(done)
        self._blocks[number] = block

    def hand_out(self, reuse: Reuse, block: Block | None, host: Host) -> None:
        """Let ``block`` inherit. What ``host`` has waited for comes before all that is still to be launched."""
        former = self._blocks.pop(reuse.former, None) if reuse.last else self._blocks.get(reuse.former)
        if former is None or block is None or reuse.block == NOBODY:
            return
        if block.inherited is None:
            block.inherited = Inheritance(reuse.stack)
        heir, older = block.inherited, former.inherited
        _inherit(heir.reads, [former.reads, *([older.reads] if older else [])], reuse, host)
        _inherit(heir.writes, [former.writes, *([older.writes] if older else [])], reuse, host)
        if not heir:
            block.inherited = None


def _shelves(block: Block) -> tuple[Shelf, ...]:
    own = (block.reads, block.writes)
    return own if block.inherited is None else (*own, block.inherited.reads, block.inherited.writes)


def _inherit(heir: Shelf, given: Iterable[Shelf], reuse: Reuse, host: Host) -> None:
    """Put what of the given accesses lies in the memory that is handed out, in the new block's bytes."""
    by = reuse.lo - reuse.start
    for shelf in given:
        for lo, hi, layout, thread, epoch, operation, phase in shelf.everything():
            start, end = lo + by, hi + by
            if start >= reuse.hi or end <= reuse.lo or host.known[thread] >= epoch:
                continue
            if layout is None:
                start, end = max(start, reuse.lo), min(end, reuse.hi)
            heir.put((start, end, layout, thread, epoch, operation, phase), None)
