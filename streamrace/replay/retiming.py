"""Computes how much longer a run takes with further waits in its own schedule.

The time that each host step and each piece of work took after its predecessors is read from the trace; with these times
the graph of dependencies (:mod:`streamrace.replay.host`) reproduces the recorded times. The same is then computed with
the inserted records: every time is the latest of its predecessors, plus the time taken.

Not modelled: a program that behaves differently in another timing (a query, a clock), a call's own time on the host
(except for a synchronisation), and memory that is handed out later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from streamrace.device.costs import Costs
from streamrace.replay.faults import ReplayError
from streamrace.replay.host import HostNodes, nodes_of
from streamrace.trace.records import Collective, HostStep, HostWait, Launch, TraceRecord

Records = Mapping[int, Sequence[TraceRecord]]


class Deadlock(ReplayError):
    """The ranks' streams and hosts wait for each other in a circle."""


class Schedule:
    """A run's schedule. ``end_ns``: end of its last work, or of its host. ``exact``: the recorded times are reproduced.

    Raises :class:`ReplayError` for a run that is not whole.
    """

    def __init__(self, records: Records, *, mirrored: bool = False) -> None:
        self._mirrored = mirrored
        nodes = nodes_of(dict(records), mirrored=mirrored)
        expected = dict(nodes.expected)
        self.exact = True
        times, took = [0] * len(nodes.preds), [0] * len(nodes.preds)
        for node in _order(nodes):
            earliest = max([times[pred] for pred in nodes.preds[node]], default=0)
            times[node] = expected.get(node, earliest)
            took[node] = times[node] - earliest
            if took[node] < 0:
                self.exact, took[node] = False, 0
        self.end_ns = max(times, default=0)
        self._took = {rank: _by_record(rank, nodes, took) for rank in records}

    def longer(self, records: Records, inserted: Mapping[int, Collection[int]]) -> int:
        """Return the nanoseconds by which the run ends later. ``inserted``: by rank, indices of the new records.

        Raises :class:`Deadlock`.
        """
        nodes = nodes_of(dict(records), mirrored=self._mirrored)
        took = [0] * len(nodes.preds)
        for rank, rank_records in records.items():
            old = iter(self._took[rank])
            new = inserted.get(rank, ())
            for index, (first, last) in enumerate(_ranges(rank, nodes)):
                if index not in new:
                    took[first:last] = next(old)
                elif isinstance(rank_records[index], HostWait) and last - first > 1:  # the call itself, then the wait
                    took[first] = Costs().synchronize_ns
        times = [0] * len(nodes.preds)
        for node in _order(nodes):
            times[node] = max([times[pred] for pred in nodes.preds[node]], default=0) + took[node]
        return max(times, default=0) - self.end_ns


def end_of(records: Records) -> int:
    """Return the time at which a run's last work, or its host, was done, according to its traces."""
    last = 0
    for rank_records in records.values():
        for record in rank_records:
            if isinstance(record, (Launch, Collective)):
                last = max(last, record.issued, record.end)
            elif isinstance(record, (HostWait, HostStep)):
                last = max(last, record.time)
    return last


def _ranges(rank: int, nodes: HostNodes) -> list[tuple[int, int]]:
    """Return the range of nodes of each of a rank's records."""
    firsts = nodes.firsts[rank]
    following = [*firsts[1:], next((begin[0] for other, begin in nodes.firsts.items() if other > rank and begin), None)]
    last = len(nodes.preds)
    return [(first, last if then is None else then) for first, then in zip(firsts, following, strict=True)]


def _by_record(rank: int, nodes: HostNodes, took: Sequence[int]) -> list[list[int]]:
    return [list(took[first:last]) for first, last in _ranges(rank, nodes)]


def _order(nodes: HostNodes) -> list[int]:
    """Sort the nodes so that each comes after its predecessors. Raises :class:`Deadlock`."""
    waiting = [len(preds) for preds in nodes.preds]
    after: list[list[int]] = [[] for _ in nodes.preds]
    for node, preds in enumerate(nodes.preds):
        for pred in preds:
            after[pred].append(node)
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:  # grows
        for later in after[node]:
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    if len(order) != len(nodes.preds):
        raise Deadlock("the ranks wait for each other in a circle")
    return order
