"""The accesses of one block that a later access may still race with.

The rule is that of FastTrack (Flanagan & Freund 2009, figure 2) and torch's CSAN
(``_sanitizer.py``, ``StreamSynchronizations`` and ``_check_memory_accesses``): a write must come after all
earlier reads and writes of its bytes, a read after all earlier writes. Two things are added.
Accesses are ranges of bytes, not whole tensors; and after a race the older access is kept, so that one
race does not hide the next.

**What is dropped.** Let X be a newer access, ordered after the older A, that covers A's bytes, X a
write or both reads. Whatever races with A later cannot be ordered after X either, as order is
transitive, so it races with X: A is redundant. Hence a race is found if and only if there is one, though not
each pair is: of several that end in the same access, the newest is named.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, TypeAlias

from detectors.order.clocks import Vector
from detectors.order.labels import Labels
from detectors.order.overlap import Layout, overlap
from detectors.order.tally import Tally
from simgpu.trace import Collective, Launch, Phase

if TYPE_CHECKING:
    from detectors.order.reuse import Inheritance

Entry: TypeAlias = tuple[int, int, Layout | None, int, int, Launch | Collective, Phase]
"""``(lo, hi, layout, thread, epoch, operation, phase)`` of an access. A plain tuple: they are many."""

_SCAN = 16  # up to so many entries, looking at each is faster than searching


class _Row:
    """Entries of similar length, sorted by where they begin."""

    __slots__ = ("entries", "longest", "starts")

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.starts: list[int] = []  # entries[i][0], apart as a search in plain integers is the fastest
        self.entries: list[Entry] = []

    def index(self, entry: Entry) -> int:
        at = bisect_left(self.starts, entry[0])
        while self.entries[at] is not entry:
            at += 1
        return at


class Shelf:
    """Entries of a block by place.

    Few blocks have more than a handful. A flat buffer has one for each parameter's part: these are
    sorted by place, one row for each size class (a power of four), so a search looks at neighbours only.
    """

    __slots__ = ("items", "rows")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.rows: dict[int, _Row] | None = None  # set: `items` is empty

    @property
    def empty(self) -> bool:
        return not (self.items or self.rows)

    def search(self, lo: int, hi: int) -> list[Entry]:
        """The entries that may overlap [lo, hi)."""
        if self.rows is None:
            return self.items
        found: list[Entry] = []
        for row in self.rows.values():
            start = bisect_left(row.starts, lo - row.longest)
            found += row.entries[start : bisect_left(row.starts, hi, start)]
        return found

    def everything(self) -> list[Entry]:
        if self.rows is None:
            return self.items
        return [entry for row in self.rows.values() for entry in row.entries]

    def put(self, entry: Entry, dropped: list[Entry] | None) -> None:
        """Add ``entry`` in place of the ``dropped`` ones, which are told apart by identity."""
        if dropped is not None:
            old = dropped[0]
            if len(dropped) == 1 and old[0] == entry[0] and old[1] == entry[1]:
                self._replace(old, entry)
                return
            self.drop(dropped)
        if self.rows is None:
            self.items.append(entry)
            if len(self.items) > _SCAN:
                entries, self.items, self.rows = self.items, [], {}
                for each in entries:
                    self.put(each, None)
            return
        size = _size_class(entry)
        row = self.rows.get(size)
        if row is None:
            row = self.rows[size] = _Row(1 << (2 * size + 1))
        at = bisect_right(row.starts, entry[0])
        row.starts.insert(at, entry[0])
        row.entries.insert(at, entry)

    def _replace(self, old: Entry, entry: Entry) -> None:
        if self.rows is None:
            items = self.items
            at = 0
            while items[at] is not old:
                at += 1
            items[at] = entry
        else:
            row = self.rows[_size_class(old)]
            row.entries[row.index(old)] = entry

    def drop(self, dropped: list[Entry]) -> None:
        if self.rows is None:
            gone = set(map(id, dropped))
            self.items = [entry for entry in self.items if id(entry) not in gone]
            return
        for entry in dropped:
            size = _size_class(entry)
            row = self.rows[size]
            at = row.index(entry)
            del row.starts[at], row.entries[at]
            if not row.entries:
                del self.rows[size]
        if not self.rows:
            self.rows = None


def _size_class(entry: Entry) -> int:
    return (entry[1] - entry[0]).bit_length() // 2


class Block:
    """What is known of one block, from its first mention to its free."""

    __slots__ = ("inherited", "labels", "owner", "pending", "reads", "recorded", "writes")

    def __init__(self) -> None:
        self.reads = Shelf()
        self.writes = Shelf()
        self.owner: int | None = None  # the stream whose order the allocator reuses it in; None: allocated unseen
        self.recorded: tuple[int, ...] = ()  # streams named by record_stream
        self.inherited: Inheritance | None = None  # what former owners of its memory did; None: nothing that can race
        self.labels: Labels | None = None
        self.pending: set[tuple[Tally, int, int]] | None = None  # raced bytes that wait for their labels

    def read(self, entry: Entry, known: Vector) -> list[Entry] | None:
        """Add a read by a thread whose clock is ``known``; returns the writes it races with, if any."""
        lo, hi, layout, thread, _, _, _ = entry
        races: list[Entry] | None = None
        writes = self.writes
        if writes.rows is None and _alone(writes.items, thread) and _renewed(self.reads, entry):
            return None
        for old in writes.items if writes.rows is None else writes.search(lo, hi):
            old_lo, old_hi, old_layout, other, epoch, _, _ = old
            if (
                other != thread
                and known[other] < epoch
                and old_lo < hi
                and lo < old_hi
                and ((layout is None and old_layout is None) or overlap(old_lo, old_hi, old_layout, lo, hi, layout))
            ):
                if races is None:
                    races = []
                races.append(old)
        self._supersede(self.reads, entry, known, add=True)
        return races

    def write(self, entry: Entry, known: Vector) -> tuple[list[Entry], list[Entry]] | None:
        """Add a write; returns the reads and the writes it races with, if any."""
        if not self.reads.items and self.reads.rows is None and _renewed(self.writes, entry):
            return None
        reads = self._supersede(self.reads, entry, known, add=False)
        writes = self._supersede(self.writes, entry, known, add=True)
        if reads or writes:
            return reads or [], writes or []
        return None

    @staticmethod
    def _supersede(shelf: Shelf, entry: Entry, known: Vector, *, add: bool) -> list[Entry] | None:
        """Drop what ``entry`` makes redundant, perhaps add it; returns what it overlaps without order."""
        lo, hi, layout, thread, _, _, _ = entry
        races: list[Entry] | None = None
        dropped: list[Entry] | None = None
        for old in shelf.items if shelf.rows is None else shelf.search(lo, hi):
            old_lo, old_hi, old_layout, other, epoch, _, _ = old
            if other == thread or known[other] >= epoch:
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
            shelf.put(entry, dropped)
        elif dropped is not None:
            shelf.drop(dropped)
        return races


def _alone(items: list[Entry], thread: int) -> bool:
    """At a glance, is none of the entries another thread's? False where that takes a longer look."""
    return not items or (len(items) == 1 and items[0][3] == thread)


def _renewed(shelf: Shelf, entry: Entry) -> bool:
    """The most frequent cases, done at once: the only entry is the same thread's, of the same bytes; there is none."""
    items = shelf.items
    if not items:
        if shelf.rows is not None:
            return False
        items.append(entry)
        return True
    old = items[0]
    if len(items) > 1 or old[3] != entry[3] or old[:3] != entry[:3]:
        return False
    items[0] = entry
    return True


def _same_bytes(entry: Entry, old: Entry) -> bool:
    return entry[:3] == old[:3]
