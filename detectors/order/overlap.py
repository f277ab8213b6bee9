"""Decides whether two accesses of the same block touch a common byte.

Dense accesses are intervals. A strided access (a column, every second element, a transposed part)
is a set of equally long *runs* of bytes; two such sets whose intervals overlap may still be
disjoint, as the interleaved columns of a matrix are. torch's CSAN compares storages only and would
report these; here the answer is exact up to a size.

**The limit.** If, within the bytes that the two intervals share, one of the sets has more than
:data:`MAX_RUNS` runs, or more than four times as many have to be visited to find these, the answer is that of the
intervals: they overlap. That can report a race between two very large interleaved views; it never hides one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Layout: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]] | tuple[int, tuple[int, ...], tuple[int, ...], int]
"""The layout of a :class:`streamrace.trace.records.Access`; for a part (:func:`cut`) also the bytes before the part."""

MAX_RUNS = 1 << 18
COVER_RUNS = 1 << 14

_Dims = list[tuple[int, int]]  # (stride, size), the longest stride first


def overlap(lo: int, hi: int, layout: Layout | None, other_lo: int, other_hi: int, other_layout: Layout | None) -> bool:
    """Check whether the two sets of bytes intersect. ``lo`` and ``hi`` bound a set, ``hi`` exclusive."""
    if lo >= other_hi or other_lo >= hi:
        return False
    if layout is None and other_layout is None:
        return True
    # The absolute offsets do not matter, and training repeats the same pairs of layouts at the same distance,
    # so the answers are cached.
    return _strided(other_lo - lo, hi - lo, layout, other_hi - other_lo, other_layout)


def cut(layout: Layout | None, by: int) -> Layout | None:
    """Return the layout of an access without its first ``by`` bytes.

    No run has to be cut: of the runs that reach into the range that two accesses share, two that meet do so inside that
    range, as intervals that meet in pairs have a point in common (Helly 1923).
    """
    return (*layout[:3], by + _before(layout)) if layout is not None and by > 0 else layout


def whole(lo: int, layout: Layout | None) -> tuple[int, Layout | None]:
    """Return start and layout of the access of which this is a part; the same for all parts of a dense access."""
    return (0, None) if layout is None else (lo - _before(layout), layout[:3])


def _before(layout: Layout | None) -> int:
    return layout[3] if layout is not None and len(layout) > 3 else 0


class Cover:
    """The bytes that several accesses touch together, as disjoint ranges; at most :data:`COVER_RUNS` of them."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges = np.array([[-1], [-1]], dtype=np.int64)  # starts and ends; initially one empty range

    def takes(self, lo: int, hi: int, layout: Layout | None) -> bool:
        """Add an access unless the ranges become too many; return False if all its bytes were covered already."""
        starts, run = _runs(lo, hi - lo, layout, lo, hi, COVER_RUNS)
        if starts is None:
            return True
        touched = np.stack([np.maximum(starts, lo), np.minimum(starts + run, hi)])
        starts, ends = (all_ := np.concatenate([self._ranges, touched], axis=1))[:, np.argsort(all_[0], kind="stable")]
        ends = np.maximum.accumulate(ends)
        gaps = np.flatnonzero(starts[1:] > ends[:-1])
        ranges = np.stack([starts[np.append(0, gaps + 1)], ends[np.append(gaps, -1)]])
        if np.array_equal(ranges, self._ranges):
            return False
        if len(gaps) <= COVER_RUNS:  # the empty range is counted too
            self._ranges = ranges
        return True


@lru_cache(maxsize=1 << 14)
def _strided(distance: int, length: int, layout: Layout | None, other_length: int, other_layout: Layout | None) -> bool:
    left, right = max(0, distance), min(length, distance + other_length)
    starts, run = _runs(0, length, layout, left, right)
    other_starts, other_run = _runs(distance, other_length, other_layout, left, right)
    if starts is None or other_starts is None:
        return True
    # Runs [s, s + run) and [o, o + other_run) meet if and only if s - other_run < o < s + run.
    nearest = np.searchsorted(other_starts, starts - other_run, side="right")
    inside = nearest < len(other_starts)
    return bool(np.any(other_starts[nearest[inside]] < starts[inside] + run))


def _runs(
    lo: int, length: int, layout: Layout | None, left: int, right: int, most: int = MAX_RUNS
) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return the sorted starts of the runs that may touch [left, right), and their length; None if too many."""
    run, dims = _normal(length, layout)
    starts = np.array([lo - _before(layout)], dtype=np.int64)
    inner = [run]  # inner[k]: bytes spanned by the dimensions behind k
    for stride, size in reversed(dims[1:]):
        inner.insert(0, inner[0] + stride * (size - 1))
    for k, (stride, size) in enumerate(dims):
        first, last = 0, size - 1
        outermost = len(starts) == 1
        if outermost:  # an outer dimension: only the indices that lead into [left, right)
            base = int(starts[0])
            first = max(0, -((base + inner[k] - 1 - left) // stride))
            last = min(last, (right - 1 - base) // stride)
        if len(starts) * (last + 1 - first) > 4 * most:
            return None, run
        starts = (starts[:, None] + np.arange(first, last + 1) * stride).ravel()
        if not outermost:
            starts = starts[(starts < right) & (starts + inner[k] > left)]
        if len(starts) > most:
            return None, run
    starts.sort()
    return starts, run


def _normal(length: int, layout: Layout | None) -> tuple[int, _Dims]:
    """Return the longest runs and the dimensions that repeat them, after joining contiguous dimensions."""
    if layout is None:
        return length, []
    run, sizes, strides = layout[:3]
    if min((run, *sizes, *strides)) < 0:
        raise ValueError("a layout has a negative size or stride")
    dims: _Dims = []
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size == 0:
            return run, [(1, 0)]
        if size == 1:
            continue
        if not dims and stride <= run:
            run = stride * (size - 1) + run
        elif dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0], dims[-1][1] * size)
        else:
            dims.append((stride, size))
    return run, dims[::-1]
