"""Keeps the access history of a block: the accesses that a later access may still race with, found by offset.

**What bounds the history.** An access is dropped when a newer one covers it (:mod:`streamrace.detectors.order.block`).
Strided accesses seldom cover each other, or only several together. So whenever a row holds twice as many entries as it
needed last time, each entry is dropped whose bytes newer entries *of the same thread* touch together: these are ordered
after it, so whatever races with it races with one of them. At most twice as many entries remain as FastTrack's shadow
memory keeps per byte (Flanagan & Freund 2009, section 3), as ranges. Rejected: that shadow memory itself (a column of
a matrix has thousands of runs, and is one entry here), and entries widened to ranges, which report false races.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import count
from typing import TypeAlias

from streamrace.detectors.order.overlap import Cover, Layout
from streamrace.trace.records import Collective, Launch, Phase

Entry: TypeAlias = tuple[int, int, Layout | None, int, int, Launch | Collective, Phase]
"""``(lo, hi, layout, thread, epoch, operation, phase)`` of an access. A plain tuple, as entries are numerous."""

_SCAN = 16  # with at most this many entries, visiting each is faster than searching
_FEW = 128  # rows of at most this many entries are not thinned


class _Row:
    """Entries of similar length, sorted by their first byte."""

    __slots__ = ("entries", "longest", "most", "starts")

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.most = _FEW
        self.starts: list[int] = []  # entries[i][0], kept separately: a search in plain integers is the fastest
        self.entries: list[Entry] = []

    def index(self, entry: Entry) -> int:
        return _find(entry, self.entries, bisect_left(self.starts, entry[0]))

    def put(self, entry: Entry) -> None:
        at = bisect_right(self.starts, entry[0])
        self.starts.insert(at, entry[0])
        self.entries.insert(at, entry)
        if len(self.entries) > self.most:
            self._thin()

    def _thin(self) -> None:
        """Drop each entry whose bytes newer entries of its thread cover together."""
        covers: defaultdict[int, Cover] = defaultdict(Cover)
        newest_first = sorted(self.entries, key=lambda entry: -entry[4])
        needed = {id(entry) for entry in newest_first if covers[entry[3]].takes(*entry[:3])}
        self.entries = [entry for entry in self.entries if id(entry) in needed]
        self.starts = [entry[0] for entry in self.entries]
        self.most = max(_FEW, 2 * len(self.entries))


class AccessHistory:
    """Entries of a block, found by offset.

    Most blocks have only a handful of entries. A flat buffer has one for each parameter's part: they are sorted by
    offset, in one row for each size class (a power of four), so that a search visits neighbours only.
    """

    __slots__ = ("items", "rows")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.rows: dict[int, _Row] | None = None  # if set, `items` is empty

    @property
    def empty(self) -> bool:
        return not (self.items or self.rows)

    def search(self, lo: int, hi: int) -> list[Entry]:
        """Return the entries that may overlap [lo, hi)."""
        if self.rows is None:
            return self.items
        entries: list[Entry] = []
        for row in self.rows.values():
            start = bisect_left(row.starts, lo - row.longest)
            entries += row.entries[start : bisect_left(row.starts, hi, start)]
        return entries

    def everything(self) -> list[Entry]:
        if self.rows is None:
            return self.items
        return [entry for row in self.rows.values() for entry in row.entries]

    def put(self, entry: Entry, dropped: list[Entry] | None) -> None:
        """Add ``entry`` in place of the ``dropped`` entries, which are compared by identity."""
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
                for moved in entries:
                    self.put(moved, None)
            return
        size = _size_class(entry)
        row = self.rows.get(size)
        if row is None:
            row = self.rows[size] = _Row(1 << (2 * size + 1))
        row.put(entry)

    def _replace(self, old: Entry, entry: Entry) -> None:
        if self.rows is None:
            self.items[_find(old, self.items, 0)] = entry
        else:
            row = self.rows[_size_class(old)]
            row.entries[row.index(old)] = entry

    def drop(self, dropped: list[Entry]) -> None:
        if self.rows is None:
            dropped_ids = set(map(id, dropped))
            self.items = [entry for entry in self.items if id(entry) not in dropped_ids]
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


class Accesses:
    """The reads and the writes of a block."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads = AccessHistory()
        self.writes = AccessHistory()


def _find(entry: Entry, entries: list[Entry], start: int) -> int:
    return next(at for at in count(start) if entries[at] is entry)


def _size_class(entry: Entry) -> int:
    return (entry[1] - entry[0]).bit_length() // 2
