"""Computes the order that a collective adds.

A collective is a rendezvous of one stream of each member. A member whose output depends on another's
input cannot finish before that other has started: the receiver joins the sender's clock, as a
message's receiver does (Lamport 1978; Mattern 1989). So the order depends on the kind:

* all-reduce, all-gather, reduce-scatter, all-to-all, barrier (no root): everyone joins everyone,
* broadcast, scatter: everyone joins the root, the root joins nobody,
* reduce, gather to a root: the root joins everyone, the others join nobody,
* send and receive: the receiver joins the source (``root``).

Each member contributes its clock at its *read* epoch. The writes happen in an epoch of their own, of which peers
never learn: that one member is done implies nothing about another's outputs.

**Mirrored traces** (``Begin.info["mirrored"]``): one rank was traced, and every other does the same at the same
virtual time. The traced rank waits for nobody, and what its peers bring adds nothing. To see this, map each event of
each rank to the event of the traced rank at the same place of the program. An edge within a rank becomes the same edge
within the traced rank. An edge of a collective, from one member's start to another's end, becomes an edge from the
traced rank's start to its own end of that collective, which are on one stream in this order. So each path through
other ranks that begins and ends with the traced rank becomes a path of its own: whatever a peer can know about its
threads, the rank itself knows, for any groups and roots. It does not hold for a send and a receive, which are different
places of the program: a path through them may be lost. Less order is known then, so a false race may be reported; none
is missed. Ranks of which each runs another part of the program may all have traces (``Begin.info["running"]``): they
wait for each other, so messages between them order, too.
"""

from __future__ import annotations

from typing import NamedTuple

from streamrace.detectors.order.clocks import Snapshot, Vector, join
from streamrace.trace.records import Collective, TraceError


class Arrival(NamedTuple):
    """One member's part: its record and its clock when it starts to read."""

    record: Collective
    position: Snapshot


def is_point_to_point(record: Collective) -> bool:
    return record.root >= 0 and ("send" in record.kernel or "recv" in record.kernel)


class OpenCollective:
    """One collective, while its members arrive."""

    def __init__(self, expected: frozenset[int]) -> None:
        self.expected = expected
        self.arrivals: dict[int, Arrival] = {}
        self.forced = False  # no longer waits for missing members
        self._merged: Vector | None = None

    @property
    def complete(self) -> bool:
        return self.forced or len(self.arrivals) == len(self.expected)

    @property
    def missing(self) -> frozenset[int]:
        return self.expected.difference(self.arrivals)

    def arrive(self, rank: int, arrival: Arrival) -> None:
        self.arrivals[rank] = arrival
        self._merged = None

    def outcome(self, rank: int) -> Vector:
        """Return what ``rank`` knows when the collective is done."""
        record, position = self.arrivals[rank]
        root, kernel = record.root, record.kernel
        if root < 0:
            return self._everyone()
        if is_point_to_point(record) or "broadcast" in kernel or "scatter" in kernel:
            source = self.arrivals.get(root)
            if source is None:  # a source that never arrived brings nothing
                return position.known
            return _joined(position.known, source.position)
        if "reduce" in kernel or "gather" in kernel:
            return self._everyone() if root == rank else position.known
        return self._everyone()

    def _everyone(self) -> Vector:
        """Return the join of all members' clocks: one vector, shared by all."""
        if self._merged is None:
            positions = [arrival.position for arrival in self.arrivals.values()]
            merged = positions[0].known
            for position in positions[1:]:
                if position.known is not merged:
                    merged = join(merged, position.known)
            merged = list(merged)
            for position in positions:
                merged[position.thread] = max(merged[position.thread], position.epoch)
            self._merged = merged
        return self._merged


def _joined(known: Vector, position: Snapshot) -> Vector:
    joined = join(known, position.known)
    joined[position.thread] = max(joined[position.thread], position.epoch)
    return joined


class OpenCollectives:
    """All collectives that some members have begun and others have not."""

    def __init__(self) -> None:
        self.groups: dict[int, tuple[int, ...]] = {}
        self._mirrored: dict[int, frozenset[int]] = {}
        self._open: dict[tuple[int, int, int], OpenCollective] = {}

    @property
    def open(self) -> int:
        return len(self._open)

    def declare(self, group: int, ranks: tuple[int, ...]) -> None:
        """Declare the ranks of a group. Raises :class:`TraceError` if two ranks disagree on a group."""
        if self.groups.setdefault(group, ranks) != ranks:
            raise TraceError(f"group {group} has ranks {self.groups[group]} in one trace and {ranks} in another")

    def mirror(self, rank: int, running: tuple[int, ...] = ()) -> None:
        """Let ``rank`` stand for others, which have no traces: it waits for ``running`` alone (see the module)."""
        self._mirrored[rank] = frozenset({rank, *running})

    def arrive(self, rank: int, arrival: Arrival) -> OpenCollective:
        """Note that ``rank`` has begun its part, and return the collective, which may be complete now."""
        record = arrival.record
        members = self.groups.get(record.group)
        if members is None or rank not in members or (record.root >= 0 and record.root not in members):
            raise TraceError(
                f"rank {rank}, op {record.op} ({record.kernel}): group {record.group} has ranks {members}, "
                f"which do not fit rank {rank} and root {record.root}"
            )
        expected, key = frozenset(members), (record.group, record.number, -1)
        if rank in self._mirrored:
            expected &= self._mirrored[rank]
            if len(expected) == 1:
                single = OpenCollective(expected)
                single.arrive(rank, arrival)
                return single
        if is_point_to_point(record):
            key = (record.group, record.number, record.root)
            expected &= {record.root, rank}  # the record names no receiver, for which the source need not wait
        collective = self._open.get(key)
        if collective is None:
            collective = self._open[key] = OpenCollective(expected)
        collective.expected |= expected
        collective.arrive(rank, arrival)
        if len(collective.arrivals) == len(collective.expected) and (len(collective.expected) > 1 or len(members) == 1):
            del self._open[key]
        return collective
