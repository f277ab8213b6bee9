"""Keeps the kinds of a block's bytes: intervals painted with kinds, the later over the earlier."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

KEPT = "primary"  # not replaced by "gathered": a gather may give out the partition's own bytes
GATHERED = "gathered"


class Painted:
    """Disjoint intervals of one block, in order, each of one kind. Neighbours of one kind are one interval.

    So a flat buffer whose parts are labelled one by one, step after step, stays one interval, and repeating a
    label costs a search and nothing more.
    """

    __slots__ = ("_highs", "_kinds", "_lows")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._kinds: list[str] = []

    def paint(self, lo: int, hi: int, kind: str) -> None:
        """Set the kind of bytes ``lo`` to ``hi`` (exclusive), unless the rule of ``KEPT`` forbids it."""
        if lo >= hi:
            return
        at = bisect_right(self._lows, lo) - 1
        if at >= 0 and hi <= self._highs[at] and (self._kinds[at] in (kind, KEPT) if kind == GATHERED else
                                                  self._kinds[at] == kind):  # fmt: skip
            return
        if kind == GATHERED:
            for gap_lo, gap_hi in list(self._not_kept(lo, hi)):
                self._replace(gap_lo, gap_hi, kind)
        else:
            self._replace(lo, hi, kind)

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes by kind."""
        totals: dict[str, int] = {}
        for lo, hi, kind in zip(self._lows, self._highs, self._kinds, strict=True):
            totals[kind] = totals.get(kind, 0) + hi - lo
        return totals

    def _not_kept(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [lo, hi) that are not ``KEPT``."""
        at = bisect_right(self._highs, lo)
        while at < len(self._lows) and self._lows[at] < hi:
            if self._kinds[at] == KEPT:
                if lo < self._lows[at]:
                    yield lo, self._lows[at]
                lo = self._highs[at]
            at += 1
        if lo < hi:
            yield lo, hi

    def _replace(self, lo: int, hi: int, kind: str) -> None:
        first = bisect_left(self._highs, lo)  # the first that overlaps or touches
        last = bisect_right(self._lows, hi)  # behind the last that does
        left: list[tuple[int, int, str]] = []
        right: list[tuple[int, int, str]] = []
        for at in range(first, last):
            old = (self._lows[at], self._highs[at], self._kinds[at])
            if old[2] == kind:
                lo, hi = min(lo, old[0]), max(hi, old[1])
                continue
            if old[0] < lo:
                left.append((old[0], min(old[1], lo), old[2]))
            if old[1] > hi:
                right.append((max(old[0], hi), old[1], old[2]))
        new = [*left, (lo, hi, kind), *right]
        self._lows[first:last] = [span[0] for span in new]
        self._highs[first:last] = [span[1] for span in new]
        self._kinds[first:last] = [span[2] for span in new]
