"""Reads from the traces which collectives each rank issued last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from streamrace.detectors.hang.explanation import Issues, RankState
from streamrace.detectors.hang.queues import IssuedCall, IssuedCollective
from streamrace.detectors.hangs import Issue
from streamrace.trace.records import Collective, Group, Stack, TraceRecord


class History:
    """Keeps the last collectives of each rank, ``most`` of them. Accepts the ranks' records in any interleaving."""

    def __init__(self, most: int = 6) -> None:
        self._most = most
        self._ranks: dict[int, RankState] = {}
        self._groups: dict[int, Group] = {}
        self._last: dict[int, deque[IssuedCollective]] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, RankState(rank))
        last = self._last.setdefault(rank, deque(maxlen=self._most))
        for record in records:
            if isinstance(record, Stack):
                state.stacks[record.id] = record.frames
            elif isinstance(record, Group):
                self._groups.setdefault(record.group, record)
                state.groups.append(record.group)
            elif isinstance(record, Collective) and record.call and record.group in self._groups:
                part = IssuedCall(rank, record.kernel, record.call, record.stack)
                members = self._groups[record.group].ranks
                last.append(IssuedCollective((record.group, record.number), members, parts={rank: part}))

    def last(self) -> Mapping[int, list[Issue]]:
        """Return the last collectives by rank, in the order of issue."""
        issues = Issues(self._ranks, self._groups, {})
        return {rank: [issues.of(rank, collective) for collective in last] for rank, last in self._last.items()}
