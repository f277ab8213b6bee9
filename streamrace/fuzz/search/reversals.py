"""Converts an order of effects to a timing: a few delays that put the conflicting accesses in that order.

Two executions with all conflicting accesses in the same order compute the same values (Mazurkiewicz 1977), so nothing
else of an order needs to be kept. Ordered pairs need no delay; of an unordered pair that the timing executes in the
other order, the access that is to come later is delayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from streamrace.fuzz.search.pct import steps_of
from streamrace.fuzz.subject import Subject
from streamrace.replay.deviations import Deviation, OperationDelay
from streamrace.replay.graph import EffectOrder, Graph
from streamrace.replay.placement import Placement
from streamrace.trace.records import Access, Collective, Launch, TraceRecord

_US = 1000
_MOST = 1 << 20  # pairs that are compared at once
_ROOM = 42  # bits of an address within a block
_Places = npt.NDArray[np.int64]
_PAIRS: WeakKeyDictionary[Subject, _Places] = WeakKeyDictionary()


def deviations_of(subject: Subject, order: EffectOrder, *, most: int = 64) -> tuple[Deviation, ...] | None:
    """Return a timing that diverges as ``order`` does, at least in part; None if that takes more than ``most`` delays.

    Pairs are corrected in the order in which they come, until executing the timing shows that training diverges.
    """
    graph, recording = subject.replayer.graph, subject.recording
    when = np.empty(len(order), dtype=np.int64)
    when[order] = np.arange(len(order))
    pairs = when[_pairs(subject)]
    pairs.sort(axis=1)
    earlier, later = order[pairs[np.argsort(pairs[:, 1], kind="stable")]].T
    deviations: tuple[OperationDelay, ...] = ()
    times = graph.times()
    while len(deviations) <= most:
        if subject.run(deviations).diverged:
            return deviations
        now = np.array([times[effect.node] for effect in graph.effects], dtype=np.int64)
        wrong = (now[earlier] > now[later]) | ((now[earlier] == now[later]) & (earlier > later))
        first = next(iter(np.flatnonzero(wrong).tolist()), None)
        if first is None:
            return None
        place = int(later[first])
        effect = graph.effects[place]
        how: Literal["late", "long"] = "late" if effect.what == "arrive" else "long"
        needed = int(now[earlier[first]] - now[place]) + 1
        delay = OperationDelay(recording.names.name(effect.rank, effect.item), how, -(-needed // _US) * _US)
        deviations = _joined(deviations, delay)
        times = graph.times(recording.deviated(deviations))
    return None


def _joined(delays: tuple[OperationDelay, ...], more: OperationDelay) -> tuple[OperationDelay, ...]:
    """Add a delay; delays of the same operation are summed."""
    same = sum(delay.ns for delay in delays if delay[:2] == more[:2])
    return (*(delay for delay in delays if delay[:2] != more[:2]), more._replace(ns=more.ns + same))


class _Touch(NamedTuple):
    """An effect's access, by addresses in the replay's memory: blocks that own it one after the other share them."""

    place: int
    lo: int
    hi: int
    writes: bool
    stream: int


def _pairs(subject: Subject) -> _Places:
    """Return pairs of places that touch common bytes on different streams, at least one writing; two columns."""
    if subject not in _PAIRS:
        graph, settled = subject.replayer.graph, steps_of(subject).settled
        pair_arrays = [
            pairs
            for rank, records in subject.recording.records.items()
            for pairs in _conflicts([touch for touch in _touches(graph, rank, records) if not settled[touch.place]])
        ]
        _PAIRS[subject] = np.unique(np.concatenate([np.empty((0, 2), dtype=np.int64), *pair_arrays]), axis=0)
    return _PAIRS[subject]


def _touches(graph: Graph, rank: int, records: Sequence[TraceRecord]) -> Iterator[_Touch]:
    """Yield the accesses of one rank's effects."""
    placement = Placement(records)
    offsets = dict(placement.offsets)

    def touched(accesses: Iterable[Access], place: int, writes: bool, stream: int) -> Iterator[_Touch]:
        for block, lo, hi, _ in accesses:
            if lo < hi:
                # a block from before the recording has no address in the replay: it gets a unique one
                at = offsets.setdefault(block, placement.size + (len(offsets) << _ROOM))
                yield _Touch(place, at + lo, at + hi, writes, stream)

    for record in records:
        if isinstance(record, (Launch, Collective)):
            sides = (record.reads, record.writes), (False, True)
            for place, accesses, writes in zip(_places(graph, rank, record), *sides, strict=False):
                yield from touched(accesses, place, writes, record.stream)


def _places(graph: Graph, rank: int, record: Launch | Collective) -> tuple[int, ...]:
    """Return the places where the record reads and where it writes; empty if it was done when issued."""
    if isinstance(record, Collective):
        return graph.place(rank, "arrive", record.op), graph.place(rank, "leave", record.op)
    place = graph.of_launch(rank, record.op)
    return () if place is None else (place, place)


def _conflicts(touches: Sequence[_Touch]) -> Iterator[_Places]:
    """Yield conflicting pairs: each touch with those that begin within it; in parts, as there may be very many."""
    if not touches:
        return
    place, lo, hi, writes, stream = np.array(sorted(touches, key=lambda touch: touch.lo), dtype=np.int64).T
    begins = np.arange(1, len(touches) + 1)
    counts = np.searchsorted(lo, hi) - begins
    at = 0
    while at < len(touches):
        until = max(at + 1, int(np.searchsorted(np.cumsum(counts[at:]), _MOST)) + at)
        sizes = counts[at:until]
        first = np.repeat(np.arange(at, until), sizes)
        other = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(begins[at:until], sizes)
        meet = ((writes[first] | writes[other]) != 0) & (stream[first] != stream[other])
        yield np.sort(np.stack([place[first[meet]], place[other[meet]]], axis=1), axis=1)
        at = until
