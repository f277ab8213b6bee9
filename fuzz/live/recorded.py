"""Reads the traces of a live run: its work and when it ran, and the values that the program read.

Work is named by what it is (:class:`simgpu.timing.Place`), so it can be found again in another run of the program.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from detectors.order.races import Moment, describe
from fuzz.live.rows import Rows
from simgpu.parts import PartReader
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


class _Reused(NamedTuple):
    """``op``: the work with which the next owner of the block's memory begins."""

    block: int
    op: int


class _Work(NamedTuple):
    op: int
    stream: int
    kernel: str
    occurrence: int
    stack: int
    start: int
    end: int


class Works(Mapping[int, RecordedWork]):
    """A rank's work by its number, in the order of the trace."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._rows = Rows(_Work)
        self._ops = self._rows.column("op")
        self._rising = True  # their numbers, as they mostly are
        self._of: dict[tuple[int, str], array[int]] = {}  # the rows of a kernel on a stream

    def add(self, record: Launch | Collective) -> None:
        op, key = record.op, (record.stream, record.kernel)
        of = self._of.get(key)
        if of is None:
            of = self._of[key] = array("q")
        self._rising = self._rising and (not self._ops or op > self._ops[-1])
        of.append(len(self._ops))
        self._rows.add(op, *key, len(of), record.stack, record.start, record.end)

    def number(self, place: Place) -> int | None:
        """The number of what is at ``place``; None: nothing is."""
        of = self._of.get((place.stream, place.kernel), ())
        if place.rank != self._rank or not 1 <= place.occurrence <= len(of):
            return None
        return self._ops[of[place.occurrence - 1]]

    def __getitem__(self, op: int) -> RecordedWork:
        return self._work(self._rows[self._row(op)])

    def __iter__(self) -> Iterator[int]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def during(self, start: int, end: int) -> Iterator[tuple[int, RecordedWork]]:
        """What was under way in that time, with its number."""
        starts, ends = self._rows.column("start"), self._rows.column("end")
        for at, (one, other) in enumerate(zip(starts, ends, strict=True)):
            if start <= other and one <= end:
                yield self._ops[at], self._work(self._rows[at])

    def _work(self, row: _Work) -> RecordedWork:
        return RecordedWork(Place(self._rank, row.stream, row.kernel, row.occurrence), row.stack, row.start, row.end)

    def _row(self, op: int) -> int:
        if self._rising:
            at = bisect_left(self._ops, op)
            if at == len(self._ops) or self._ops[at] != op:
                raise KeyError(op)
            return at
        try:
            return len(self._ops) - 1 - self._ops[::-1].index(op)
        except ValueError:
            raise KeyError(op) from None


@dataclass
class Recorded:
    """One rank's run. ``final``: what lies in its memory, block by block. ``ended``: it came to its end.
    ``thinned``: the trace that was read is only the beginning.
    """

    rank: int
    works: Works = field(init=False)
    reads: Rows[ValueRead] = field(default_factory=lambda: Rows(ValueRead))
    final: Rows[ValueRead] = field(default_factory=lambda: Rows(ValueRead))
    ended: bool = False
    thinned: bool = False
    streams: dict[int, str] = field(default_factory=dict)
    waits: Rows[HostWaited] = field(default_factory=lambda: Rows(HostWaited))
    _stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    _reused: Rows[_Reused] = field(default_factory=lambda: Rows(_Reused))

    def __post_init__(self) -> None:
        self.works = Works(self.rank)

    @classmethod
    def of(cls, rank: int, records: Iterable[TraceRecord]) -> Recorded:
        """Read one rank's trace."""
        made = cls(rank)
        freed: list[int] = []
        probe: Probe | None = None
        for record in records:
            if isinstance(record, (Launch, Collective)):
                made.works.add(record)
                while freed:
                    made._reused.add(freed.pop(), record.op)
            elif isinstance(record, HostWait):
                if 0 <= record.began < record.time:
                    made.waits.add(record.how, record.stack, record.began, record.time)
            elif isinstance(record, Free):
                freed.append(record.block)
            elif isinstance(record, Probe):
                probe = record
            elif isinstance(record, Probed) and probe is not None:
                (nbytes,) = probe.view[2]
                if probe.kind == "read":
                    made.reads.add(record.probe, nbytes, record.checksum)
                else:
                    made.final.add(0, nbytes, record.checksum)
            elif isinstance(record, Stack):
                made._stacks[record.id] = record.frames
            elif isinstance(record, StreamName):
                made.streams[record.stream] = record.name
            elif isinstance(record, End):
                made.ended = True
        return made

    def place(self, moment: Moment, block: int) -> Place | None:
        """What a side of a race is. Of a free it is the work with which the next owner of the memory begins."""
        op = self._next(block) if moment.op is None else moment.op
        work = None if op is None else self.works.get(op)
        return None if work is None else work.place

    def time(self, place: Place, touch: Touch) -> int | None:
        """When it touches memory; None: this run has no such work, or it never came to it."""
        op = self.works.number(place)
        work = None if op is None else self.works[op]
        if work is None or work.end < 0:
            return None
        return work.start if touch == "start" else work.end

    def _next(self, block: int) -> int | None:
        """The work with which the next owner of its memory begins."""
        blocks = self._reused.column("block")
        return self._reused[blocks.index(block)].op if block in blocks else None

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


def begins(run: RecordedRun, other: RecordedRun) -> bool:
    """Is the first, of traces that were thinned, how the other began?"""
    return run.keys() == other.keys() and all(
        len(mine.works) <= len(other[rank].works)
        and all(one == two for one, two in zip(mine.works.items(), other[rank].works.items(), strict=False))
        for rank, mine in run.items()
    )


def load(folder: Path, *, kept: bool = False) -> RecordedRun:
    """The traces of a run. ``kept``: what is there of some that were thinned will do.

    Raises :class:`simgpu.trace.TraceError`.
    """
    run: RecordedRun = {}
    for path in sorted(folder.glob("rank*.trace")):
        reader = PartReader(path, kept=kept)
        rank = int(path.stem.removeprefix("rank"))
        run[rank] = Recorded.of(rank, reader.read())
        run[rank].thinned = reader.thinned
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
