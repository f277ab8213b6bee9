"""Reads the traces of a live run: its work and when it ran, and the values that the program read.

Work is named by what it is (:class:`simgpu.timing.Place`), so it can be found again in another run of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from detectors.order.races import Moment, describe
from simgpu.timing import Place
from simgpu.trace import (
    Collective,
    End,
    Frame,
    Free,
    HostWait,
    Launch,
    Probe,
    Probed,
    Stack,
    StreamName,
    TraceReader,
    TraceRecord,
)

Touch = Literal["start", "end"]
"""When work touches memory: a collective reads when it starts, all else happens when the work ends."""


class RecordedWork(NamedTuple):
    """One launch or collective; times are virtual nanoseconds."""

    place: Place
    stack: int
    start: int
    end: int


class HostWaited(NamedTuple):
    """The host stood still, in virtual nanoseconds. ``how``: see :class:`simgpu.trace.HostWait`."""

    how: str
    stack: int
    start: int
    end: int


class ValueRead(NamedTuple):
    """A value that the program read: so many bytes with this CRC-32. ``op``: by which work (0: at the end)."""

    op: int
    nbytes: int
    checksum: int


@dataclass
class Recorded:
    """One rank's run. ``final``: what lies in its memory, block by block. ``ended``: it came to its end."""

    rank: int
    works: dict[int, RecordedWork] = field(default_factory=dict)
    numbers: dict[Place, int] = field(default_factory=dict)
    reads: list[ValueRead] = field(default_factory=list)
    final: list[ValueRead] = field(default_factory=list)
    ended: bool = False
    streams: dict[int, str] = field(default_factory=dict)
    waits: list[HostWaited] = field(default_factory=list)
    _stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    _reused: dict[int, int] = field(default_factory=dict)  # by block: the work with which its next owner begins

    @classmethod
    def of(cls, rank: int, records: Iterable[TraceRecord]) -> Recorded:
        """Read one rank's trace."""
        made = cls(rank)
        counts: Counter[tuple[int, str]] = Counter()
        freed: list[int] = []
        probe: Probe | None = None
        for record in records:
            if isinstance(record, (Launch, Collective)):
                counts[record.stream, record.kernel] += 1
                place = Place(rank, record.stream, record.kernel, counts[record.stream, record.kernel])
                made.works[record.op] = RecordedWork(place, record.stack, record.start, record.end)
                made.numbers[place] = record.op
                while freed:
                    made._reused[freed.pop()] = record.op
            elif isinstance(record, HostWait):
                if 0 <= record.began < record.time:
                    made.waits.append(HostWaited(record.how, record.stack, record.began, record.time))
            elif isinstance(record, Free):
                freed.append(record.block)
            elif isinstance(record, Probe):
                probe = record
            elif isinstance(record, Probed) and probe is not None:
                (nbytes,) = probe.view[2]
                if probe.kind == "read":
                    made.reads.append(ValueRead(record.probe, nbytes, record.checksum))
                else:
                    made.final.append(ValueRead(0, nbytes, record.checksum))
            elif isinstance(record, Stack):
                made._stacks[record.id] = record.frames
            elif isinstance(record, StreamName):
                made.streams[record.stream] = record.name
            elif isinstance(record, End):
                made.ended = True
        return made

    def place(self, moment: Moment, block: int) -> Place | None:
        """What a side of a race is. Of a free it is the work with which the next owner of the memory begins."""
        op = self._reused.get(block) if moment.op is None else moment.op
        work = None if op is None else self.works.get(op)
        return None if work is None else work.place

    def time(self, place: Place, touch: Touch) -> int | None:
        """When it touches memory; None: this run has no such work, or it never came to it."""
        work = self.works.get(self.numbers.get(place, -1))
        if work is None or work.end < 0:
            return None
        return work.start if touch == "start" else work.end

    def where(self, op: int) -> str:
        """The work and its line, for a sentence."""
        return describe(self.works[op].place.kernel, self.frames(op))

    @property
    def stacks(self) -> Iterable[tuple[Frame, ...]]:
        """All from where anything was given, memory taken or let go."""
        return self._stacks.values()

    def frames(self, op: int) -> tuple[Frame, ...]:
        """From where the work was given, innermost first."""
        return self.stack(self.works[op].stack)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The calls, innermost first."""
        return self._stacks.get(number, ())


RecordedRun = dict[int, Recorded]
"""By rank."""


def load(folder: Path) -> RecordedRun:
    """The traces of a run. Raises :class:`simgpu.trace.TraceError`."""
    run: RecordedRun = {}
    for path in sorted(folder.glob("rank*.trace")):
        reader = TraceReader(path)
        rank = int(path.stem.removeprefix("rank"))
        run[rank] = Recorded.of(rank, reader.read())
        reader.close()
    return run


def difference(one: RecordedRun, other: RecordedRun) -> str:
    """What the second run read otherwise than the first, as the subject of a sentence; empty where nothing differs.

    First what the host read, in the order of the program, then memory at the end, where both came to it.
    """
    for rank in sorted(one):
        on = f" on rank {rank}" if len(one) > 1 else ""
        if rank not in other:
            return f"that rank {rank} ran"
        mine, theirs = one[rank], other[rank]
        for before, now in zip(mine.reads, theirs.reads, strict=False):
            if (before.nbytes, before.checksum) != (now.nbytes, now.checksum):
                return f"what the host reads{on} by {theirs.where(now.op)}"
    for rank in sorted(one):
        on = f" on rank {rank}" if len(one) > 1 else ""
        mine, theirs = one[rank], other[rank]
        if mine.ended != theirs.ended:
            return f"whether the program comes to its end{on}"
        if len(mine.reads) != len(theirs.reads):
            return f"how often the host reads{on}"
        if mine.ended and mine.final != theirs.final:
            return f"what lies in memory{on} when the program ends"
    return ""
