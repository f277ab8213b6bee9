"""Collects the bytes that a kernel reads and writes while it is interpreted.

An operation of a kernel accesses a block of elements: their addresses become runs of consecutive bytes, exactly, of
any types and strides. The runs of a launch are merged when it ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MOST_RUNS = 4096
"""Runs of one block that a launch's record keeps apart. Beyond this number, the smallest gaps count as accessed."""
_COMPACT = 1 << 16  # rows that are merged before the launch ends, which bounds the memory of a long one


@dataclass(frozen=True)
class StorageSpan:
    """The memory of a tensor's storage: addresses ``start`` to ``end``, which begin at byte ``offset`` of ``block``.

    ``element``: the bytes of one of the tensor's elements.
    """

    start: int
    end: int
    block: int
    offset: int
    element: int = 1


@dataclass
class _Runs:
    """Runs of bytes: rows of a first address and an end."""

    parts: list[Array] = field(default_factory=list)
    rows: int = 0
    exact: bool = True

    def add(self, runs: Array) -> None:
        if not len(runs):
            return
        self.parts.append(runs)
        self.rows += len(runs)
        if self.rows > _COMPACT:
            merged = self.merged()
            self.parts, self.rows = [merged], len(merged)
            if len(merged) > _COMPACT // 2:
                self.parts, self.rows, self.exact = [few(merged)], MOST_RUNS, False

    def merged(self) -> Array:
        """Return the runs in the order of their addresses, those that touch each other as one."""
        if not self.parts:
            return np.zeros((0, 2), np.int64)
        runs = np.concatenate(self.parts)
        runs = runs[np.argsort(runs[:, 0], kind="stable")]
        ends = np.maximum.accumulate(runs[:, 1])
        first = np.concatenate(([True], runs[1:, 0] > ends[:-1]))
        last = np.concatenate((first[1:], [True]))
        return np.stack([runs[first, 0], ends[last]], axis=1)


class LaunchMemory:
    """The memory of a launch's arguments (:func:`storages_of`), and what the launch has accessed of it.

    What a program reads after it has written it is no read of the launch.
    """

    def __init__(self, spans: Sequence[StorageSpan]) -> None:
        self._spans = list(spans)
        self._starts = [span.start for span in self._spans]
        self._read = [_Runs() for _ in self._spans]
        self._written = [_Runs() for _ in self._spans]
        self._own: dict[int, _Runs] = {}  # what the program has written, by the start of its storage

    def begin(self) -> None:
        """Begin to run a program."""
        self._own.clear()

    def add(self, span: StorageSpan) -> None:
        """Add memory that the launch reaches by an address which it was given as a number."""
        at = bisect_right(self._starts, span.start)
        self._spans.insert(at, span)
        self._starts.insert(at, span.start)
        self._read.insert(at, _Runs())
        self._written.insert(at, _Runs())

    def access(self, addresses: Array, size: int, *, reads: bool, writes: bool) -> Array | None:
        """Note an access to elements of ``size`` bytes. Return which of them are inside; None: all are."""
        lowest, highest = int(addresses.min()), int(addresses.max()) + size
        at = bisect_right(self._starts, lowest) - 1
        if at >= 0 and highest <= self._spans[at].end:
            self._note(at, runs_of(addresses, size), reads, writes)
            return None
        inside = np.zeros(addresses.shape, bool)
        for number, span in enumerate(self._spans):
            here = (addresses >= span.start) & (addresses + np.uint64(size) <= span.end)
            if here.any():
                inside |= here
                self._note(number, runs_of(addresses[here], size), reads, writes)
        return None if inside.all() else inside

    def _note(self, number: int, runs: Array, reads: bool, writes: bool) -> None:
        start = self._starts[number]
        if reads:
            own = self._own.get(start)
            self._read[number].add(runs if own is None or not own.exact else without(runs, own.merged()))
        if writes:
            self._written[number].add(runs)
            self._own.setdefault(start, _Runs()).add(runs)

    def reads(self) -> Array:
        """Return the bytes read: rows of a block, its first byte and the end."""
        return self._ranges(self._read)

    def writes(self) -> Array:
        """Return the bytes written, as :meth:`reads`."""
        return self._ranges(self._written)

    def _ranges(self, kept: Sequence[_Runs]) -> Array:
        ranges = [np.zeros((0, 3), np.int64)]
        for span, runs in zip(self._spans, kept, strict=True):
            merged = few(runs.merged()) + (span.offset - span.start)
            ranges.append(np.concatenate([np.full((len(merged), 1), span.block), merged], axis=1))
        return np.concatenate(ranges)


def storages_of(spans: Iterable[StorageSpan]) -> list[StorageSpan]:
    """Return the storages of tensors, of which several may share one, in the order of their addresses."""
    whole: dict[int, StorageSpan] = {}
    for span in spans:
        other = whole.get(span.start, span)
        whole[span.start] = replace(other, end=max(other.end, span.end), element=min(other.element, span.element))
    return [whole[start] for start in sorted(whole)]


def runs_of(addresses: Array, size: int) -> Array:
    """Return the runs of bytes of elements at these addresses, each of ``size`` bytes."""
    places = np.ravel(addresses).astype(np.int64)
    steps = np.diff(places)
    if not (steps == size).all():
        if (steps <= 0).any():
            places = np.unique(places)
            steps = np.diff(places)
        gaps = np.flatnonzero(steps > size)
        first, last = np.concatenate(([0], gaps + 1)), np.concatenate((gaps, [len(places) - 1]))
        return np.stack([places[first], places[last] + size], axis=1)
    return np.array([[places[0], places[-1] + size]])


def without(runs: Array, others: Array) -> Array:
    """Return the parts of merged runs that are not in others."""
    points = np.unique(np.concatenate((runs, others)))
    parts = np.stack([points[:-1], points[1:]], axis=1)
    return parts[_contains(runs, parts[:, 0]) & ~_contains(others, parts[:, 0])]


def _contains(runs: Array, places: Array) -> Array:
    which = np.searchsorted(runs[:, 0], places, side="right") - 1
    inside: Array = (which >= 0) & (places < runs[which, 1])
    return inside


def few(runs: Array) -> Array:
    """Return at most :data:`MOST_RUNS` of merged runs that cover them all, with the widest of the gaps between them."""
    if len(runs) <= MOST_RUNS:
        return runs
    gaps = runs[1:, 0] - runs[:-1, 1]
    cuts = np.sort(np.argpartition(gaps, -(MOST_RUNS - 1))[-(MOST_RUNS - 1) :])
    starts = np.concatenate(([runs[0, 0]], runs[cuts + 1, 0]))
    ends = np.concatenate((runs[cuts, 1], [runs[-1, 1]]))
    return np.stack([starts, ends], axis=1)
