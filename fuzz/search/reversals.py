"""Writes an order of effects down as a timing: a few delays that put the accesses which conflict in that order.

Two executions in which all conflicting accesses come in the same order compute the same (Mazurkiewicz 1977), so
nothing else of an order needs to be kept. Ordered pairs come right by themselves; of an unordered pair that the
timing executes the other way round, the access that is to come later is delayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fuzz.search.pct import steps_of
from fuzz.subject import Subject
from repro.replay.deviations import Delay, Deviation
from repro.replay.graph import Graph, Order
from repro.trace import Access, Alloc, Collective, Free, Launch, TraceRecord

_US = 1000
_Places = npt.NDArray[np.int64]
_PAIRS: WeakKeyDictionary[Subject, _Places] = WeakKeyDictionary()


def deviations_of(subject: Subject, order: Order, *, most: int = 64) -> tuple[Deviation, ...] | None:
    """A timing that diverges as ``order`` does, at least in part; None if that takes more than ``most`` delays.

    Pairs are put right in the order in which they come, until training diverges: that is seen by executing it.
    """
    graph, recording = subject.replayer.graph, subject.recording
    when = np.empty(len(order), dtype=np.int64)
    when[order] = np.arange(len(order))
    pairs = when[_pairs(subject)]
    pairs.sort(axis=1)
    earlier, later = order[pairs[np.argsort(pairs[:, 1], kind="stable")]].T
    deviations: tuple[Delay, ...] = ()
    times = graph.times()
    while len(deviations) <= most:
        if subject.run(deviations).diverged:
            return deviations
        now = np.array([times[effect.node] for effect in graph.effects], dtype=np.int64)
        wrong = (now[earlier] > now[later]) | ((now[earlier] == now[later]) & (earlier > later))
        first = next((at for at in np.flatnonzero(wrong).tolist() if graph.effects[later[at]].what != "free"), None)
        if first is None:
            return None
        place = int(later[first])
        effect = graph.effects[place]
        how: Literal["late", "long"] = "late" if effect.what == "arrive" else "long"
        needed = int(now[earlier[first]] - now[place]) + 1
        delay = Delay(recording.names.name(effect.rank, effect.item), how, -(-needed // _US) * _US)
        deviations = _joined(deviations, delay)
        times = graph.times(recording.deviated(deviations))
    return None


def _joined(delays: tuple[Delay, ...], more: Delay) -> tuple[Delay, ...]:
    """Delays of the same are one."""
    same = sum(delay.ns for delay in delays if delay[:2] == more[:2])
    return (*(delay for delay in delays if delay[:2] != more[:2]), more._replace(ns=more.ns + same))


class _Touch(NamedTuple):
    """An effect's access to a block."""

    place: int
    lo: int
    hi: int
    writes: bool
    stream: int


def _pairs(subject: Subject) -> _Places:
    """Places of effects that touch common bytes on different streams, one of them writing; two columns."""
    if subject not in _PAIRS:
        graph, settled = subject.replayer.graph, steps_of(subject).settled
        found = [
            _conflicts([touch for touch in touches if not settled[touch.place]])
            for rank, records in subject.recording.records.items()
            for touches in _touches(graph, rank, records).values()
        ]
        _PAIRS[subject] = np.unique(np.concatenate([np.empty((0, 2), dtype=np.int64), *found]), axis=0)
    return _PAIRS[subject]


def _touches(graph: Graph, rank: int, records: Iterable[TraceRecord]) -> dict[int, list[_Touch]]:
    """By block."""
    touches: dict[int, list[_Touch]] = {}
    sizes: dict[int, tuple[int, int]] = {}

    def touch(accesses: Iterable[Access], place: int, writes: bool, stream: int) -> None:
        for block, lo, hi, _ in accesses:
            touches.setdefault(block, []).append(_Touch(place, lo, hi, writes, stream))

    for record in records:
        if isinstance(record, (Launch, Collective)):
            places = _places(graph, rank, record)
            for accesses, place, writes in zip((record.reads, record.writes), places, (False, True), strict=False):
                touch(accesses, place, writes, record.stream)
        elif isinstance(record, Alloc):
            sizes[record.block] = record.nbytes, record.stream
        elif isinstance(record, Free) and record.poisoned:
            size, stream = sizes[record.block]
            touch([Access(record.block, 0, size)], graph.place(rank, "free", record.block), True, stream)
    return touches


def _places(graph: Graph, rank: int, record: Launch | Collective) -> Iterator[int]:
    """Where among the effects it reads, and where it writes."""
    if isinstance(record, Collective):
        yield graph.place(rank, "arrive", record.op)
        yield graph.place(rank, "leave", record.op)
    elif (place := graph.of_launch(rank, record.op)) is not None:
        yield from (place, place)


def _conflicts(touches: list[_Touch]) -> _Places:
    if not touches:
        return np.empty((0, 2), dtype=np.int64)
    place, lo, hi, writes, stream = np.array(touches, dtype=np.int64).T
    meet = (lo[:, None] < hi) & (lo < hi[:, None]) & ((writes[:, None] | writes) != 0) & (stream[:, None] != stream)
    one, other = np.nonzero(np.triu(meet))
    return np.stack([place[one], place[other]], axis=1)
