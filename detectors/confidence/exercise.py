"""Detects mechanisms that were enabled but never exercised: a run without races does not cover them.

A *mechanism* is a part of a program that can race: a stream of its own, a process group, a second copy of the
parameters. Each has a detector that reports a mechanism present and not used. Mechanisms that any program can have are
here; those that only a framework knows come with the framework.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from streamrace.detectors.base import Detector, Unexercised
from streamrace.trace import wording
from streamrace.trace.records import HOST_STREAM, Collective, Group, Launch, StreamName, TraceRecord
from streamrace.trace.schema import HOST


class IdleStreams(Detector):
    """Finds streams that were created and never given work, and runs in which all work ran on one stream.

    Streams of the device's own, as CUDA graphs have them in a replay, are left out: no program made them.
    """

    def __init__(self) -> None:
        self._names: dict[int, dict[int, str]] = defaultdict(dict)
        self._used: dict[int, set[int]] = defaultdict(set)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        names, used = self._names[rank], self._used[rank]
        for record in records:
            if isinstance(record, (Launch, Collective)):
                used.add(record.stream)
            elif isinstance(record, StreamName):
                names[record.stream] = record.name

    def findings(self) -> list[Unexercised]:
        idle: dict[str, list[int]] = defaultdict(list)
        for rank, names in sorted(self._names.items()):
            for stream, name in names.items():
                if stream not in self._used[rank] and 0 < stream < HOST and name != HOST_STREAM:
                    idle[name].append(rank)
        sentences = [f"{name} was given no work{_on(ranks, len(self._used))}" for name, ranks in sorted(idle.items())]
        streams = set().union(*self._used.values())  # includes the host's stream: its use of pinned memory can race
        if len(streams) == 1:
            sentences.insert(0, "all work ran on one stream, whose order nothing can break")
        return [Unexercised(sentence) for sentence in sentences]


class LoneGroups(Detector):
    """Finds process groups of one rank, whose collectives wait for no other."""

    def __init__(self) -> None:
        self._lone: dict[int, set[int]] = defaultdict(set)
        self._collectives: dict[tuple[int, int], int] = defaultdict(int)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            if isinstance(record, Collective):
                self._collectives[rank, record.group] += 1
            elif isinstance(record, Group) and len(record.ranks) == 1:
                self._lone[rank].add(record.group)

    def findings(self) -> list[Unexercised]:
        count = sum(self._collectives[rank, group] for rank, groups in self._lone.items() for group in groups)
        if not count:
            return []
        collectives = wording.count(count, "collective")
        return [Unexercised(f"{collectives} ran in process groups of one rank, where no other rank is waited for")]


def _on(ranks: Sequence[int], world: int) -> str:
    if len(ranks) == world:
        return "" if world == 1 else " on any rank"
    return f" on rank {', '.join(map(str, ranks))}"
