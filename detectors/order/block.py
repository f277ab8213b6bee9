"""Defines a block of memory and the rule by which two accesses to it race.

The rule is that of FastTrack (Flanagan & Freund 2009, figure 2) and torch's CSAN
(``_sanitizer.py``, ``StreamSynchronizations`` and ``_check_memory_accesses``): a write must come after all
earlier reads and writes of its bytes, a read after all earlier writes. Two things are added.
Accesses are ranges of bytes, not whole tensors; and after a race the older access is kept, so that no race hides the
next.

**What is dropped.** Let X be a newer access, ordered after the older A, that covers A's bytes, X a
write or both reads. Whatever races with A later cannot be ordered after X either, as order is
transitive, so it races with X: A is redundant. Hence a race is found if and only if the trace has one, though not
every racing pair is: of several pairs that end in the same access, the pair with the newest first access is reported.
"""

from __future__ import annotations

from streamrace.detectors.order.access_history import Accesses, AccessHistory, Entry
from streamrace.detectors.order.clocks import Vector
from streamrace.detectors.order.labels import HasNames, Labels
from streamrace.detectors.order.overlap import overlap
from streamrace.detectors.order.reuse import Found, Inheritance


class Block(Accesses):
    """The state of one block, from its first mention in the trace to its free."""

    __slots__ = ("inherited", "labels", "number", "owner", "raced", "recorded")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.owner: int | None = None  # the allocator reuses the block in this stream's order; None: not traced
        self.recorded: tuple[int, ...] = ()  # streams named by record_stream
        self.inherited: Inheritance | None = None  # what former owners of its memory did; None: nothing that can race
        self.labels: Labels | None = None
        self.raced: set[tuple[HasNames, int, int]] | None = None  # bytes of its races, to be named by its labels

    def settle(self) -> None:
        """Name the bytes of the block's races so far. Labels may come later than the races they explain."""
        if self.raced is not None and self.labels is not None:
            for race, lo, hi in self.raced:
                race.names |= self.labels.of(lo, hi)

    def read(self, entry: Entry, known: Vector) -> Found | None:
        """Add a read by a thread whose clock is ``known``; return the accesses it races with, if any."""
        lo, hi, layout, thread, _, _, _ = entry
        races: list[Entry] | None = None
        writes = self.writes
        if writes.rows is None and _alone(writes.items, thread) and _renewed(self.reads, entry):
            return None
        for old in writes.search(lo, hi):
            old_lo, old_hi, old_layout, old_thread, epoch, _, _ = old
            if (
                old_thread != thread
                and known[old_thread] < epoch
                and old_lo < hi
                and lo < old_hi
                and ((layout is None and old_layout is None) or overlap(old_lo, old_hi, old_layout, lo, hi, layout))
            ):
                if races is None:
                    races = []
                races.append(old)
        self._supersede(self.reads, entry, known, add=True)
        return ([], races) if races else None

    def write(self, entry: Entry, known: Vector) -> Found | None:
        """Add a write; return the accesses it races with, if any."""
        if not self.reads.items and self.reads.rows is None and _renewed(self.writes, entry):
            return None
        reads = self._supersede(self.reads, entry, known, add=False)
        writes = self._supersede(self.writes, entry, known, add=True)
        if reads or writes:
            return reads or [], writes or []
        return None

    @staticmethod
    def _supersede(history: AccessHistory, entry: Entry, known: Vector, *, add: bool) -> list[Entry] | None:
        """Drop the entries that ``entry`` makes redundant, optionally add it; return the entries it races with."""
        lo, hi, layout, thread, _, _, _ = entry
        races: list[Entry] | None = None
        dropped: list[Entry] | None = None
        for old in history.search(lo, hi):
            old_lo, old_hi, old_layout, old_thread, epoch, _, _ = old
            if old_thread == thread or known[old_thread] >= epoch:
                if lo <= old_lo and old_hi <= hi and (layout is None or _same_bytes(entry, old)):
                    if dropped is None:
                        dropped = []
                    dropped.append(old)
            elif (
                old_lo < hi
                and lo < old_hi
                and ((layout is None and old_layout is None) or overlap(old_lo, old_hi, old_layout, lo, hi, layout))
            ):
                if races is None:
                    races = []
                races.append(old)
        if add:
            history.put(entry, dropped)
        elif dropped is not None:
            history.drop(dropped)
        return races


def _alone(items: list[Entry], thread: int) -> bool:
    """Check whether all entries are of ``thread``. May answer False for histories of more than one entry."""
    return not items or (len(items) == 1 and items[0][3] == thread)


def _renewed(history: AccessHistory, entry: Entry) -> bool:
    """Handle the most frequent cases quickly: no entry, or a single one of the same thread and the same bytes."""
    items = history.items
    if not items:
        if history.rows is not None:
            return False
        items.append(entry)
        return True
    old = items[0]
    if len(items) > 1 or old[3] != entry[3] or not _same_bytes(entry, old):
        return False
    items[0] = entry
    return True


def _same_bytes(entry: Entry, old: Entry) -> bool:
    return entry[:3] == old[:3]
