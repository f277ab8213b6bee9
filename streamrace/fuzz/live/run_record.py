"""Reads the traces of a live run: its work and when it ran, and the values that the program read.

Work is named by :class:`streamrace.device.timing.Place`, so that it can be found in another run of the program.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from streamrace.detectors.order.races import Moment, describe
from streamrace.device.timing import Place
from streamrace.device.value_checksums import COLLECTIVE, PARAMETER
from streamrace.fuzz.live.rows import Rows, Spill
from streamrace.trace.parts import PartReader
from streamrace.trace.records import (
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
"""The moment when work accesses memory: a collective reads at its start, all else happens at the end of the work."""


class RecordedWork(NamedTuple):
    """A launch or collective; times are virtual nanoseconds."""

    place: Place
    stack: int
    start: int
    end: int


class HostWaited(NamedTuple):
    """A wait of the host, in virtual nanoseconds. ``how``: see :class:`streamrace.trace.records.HostWait`."""

    how: str
    stack: int
    start: int
    end: int


class ValueRead(NamedTuple):
    """A value that the program read: its size and CRC-32. ``op``: the work that read it (0: at the end).

    ``bits``: of the number as a float64, if it is a single one (``single`` 1): for a person, nothing is compared by it.
    """

    op: int
    nbytes: int
    checksum: int
    single: int = 0
    bits: int = 0

    @property
    def number(self) -> float | None:
        return float(struct.unpack("<d", struct.pack("<q", self.bits))[0]) if self.single else None


class Looked(NamedTuple):
    """The content of a collective or parameter, in a run that requests it (:mod:`streamrace.device.uninitialised`).

    ``name``: the object and its place. ``checksum`` None: its moment was never reached.
    """

    kind: str
    name: str
    nbytes: int
    checksum: int | None = None


class _Reused(NamedTuple):
    """``op``: the first work of the next owner of the block's memory."""

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
    """Maps a rank's work numbers to its work, in the order of the trace."""

    def __init__(self, rank: int, spill: Spill | None = None) -> None:
        self._rank = rank
        self._rows = Rows(_Work, spill)
        self._last: int | None = None
        self._rising = True  # whether the numbers rise, as they usually do
        self._counts: dict[tuple[int, str], int] = {}  # by stream and kernel

    def add(self, record: Launch | Collective) -> None:
        op, key = record.op, (record.stream, record.kernel)
        self._counts[key] = occurrence = self._counts.get(key, 0) + 1
        self._rising = self._rising and (self._last is None or op > self._last)
        self._last = op
        self._rows.add(op, *key, occurrence, record.stack, record.start, record.end)

    def number(self, place: Place) -> int | None:
        """Return the number of the work at ``place``; None if there is none."""
        rank, stream, kernel, occurrence = place
        if rank != self._rank or not 1 <= occurrence <= self._counts.get((stream, kernel), 0):
            return None
        at = self._rows.first(occurrence=occurrence, stream=stream, kernel=kernel)
        return None if at is None else self._rows.number(at, "op")

    def __getitem__(self, op: int) -> RecordedWork:
        return self._work(self._rows[self._row(op)])

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(ops for _, (ops,) in self._rows.columns("op"))

    def __len__(self) -> int:
        return len(self._rows)

    def each(self) -> Iterator[tuple[int, RecordedWork]]:
        """Yield all work with its number, in the order of the trace; repeated records are yielded repeatedly."""
        return ((row.op, self._work(row)) for row in self._rows)

    def during(self, start: int, end: int) -> Iterator[tuple[int, RecordedWork]]:
        """Yield the work that was under way in that time, with its number."""
        for before, (ops, starts, ends) in self._rows.columns("op", "start", "end"):
            for at, (op, work_start, work_end) in enumerate(zip(ops, starts, ends, strict=True), before):
                if start <= work_end and work_start <= end:
                    yield op, self._work(self._rows[at])

    def _work(self, row: _Work) -> RecordedWork:
        return RecordedWork(Place(self._rank, row.stream, row.kernel, row.occurrence), row.stack, row.start, row.end)

    def _row(self, op: int) -> int:
        if self._rising:
            at = bisect_left(range(len(self)), op, key=lambda at: self._rows.number(at, "op"))
            if at == len(self) or self._rows.number(at, "op") != op:
                raise KeyError(op)
            return at
        at = max((at for at, number in enumerate(self) if number == op), default=-1)
        if at < 0:
            raise KeyError(op)
        return at


@dataclass
class Recorded:
    """One rank's run. ``final``: the content of its memory, by block. ``ended``: the run reached its end.

    ``thinned``: only the beginning of the trace was read. ``spill``: holds most of the data (default: a new one).
    """

    rank: int
    works: Works = field(init=False)
    reads: Rows[ValueRead] = field(init=False)
    final: Rows[ValueRead] = field(init=False)
    ended: bool = False
    thinned: bool = False
    streams: dict[int, str] = field(default_factory=dict)
    waits: Rows[HostWaited] = field(init=False)
    looked: list[Looked] = field(default_factory=list)
    _stacks: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    _reused: Rows[_Reused] = field(init=False)
    spill: InitVar[Spill | None] = None

    def __post_init__(self, spill: Spill | None) -> None:
        spill = spill or Spill()
        self.works = Works(self.rank, spill)
        self.reads, self.final = Rows(ValueRead, spill), Rows(ValueRead, spill)
        self.waits, self._reused = Rows(HostWaited, spill), Rows(_Reused, spill)

    @classmethod
    def of(cls, rank: int, records: Iterable[TraceRecord], spill: Spill | None = None) -> Recorded:
        """Read one rank's trace."""
        recorded = cls(rank, spill=spill)
        freed: list[int] = []
        probe: Probe | None = None
        looks: dict[int, int] = {}
        for record in records:
            if isinstance(record, (Launch, Collective)):
                recorded.works.add(record)
                while freed:
                    recorded._reused.add(freed.pop(), record.op)
            elif isinstance(record, HostWait):
                if 0 <= record.began < record.time:
                    recorded.waits.add(record.how, record.stack, record.began, record.time)
            elif isinstance(record, Free):
                freed.append(record.block)
            elif isinstance(record, Probe) and record.kind in (COLLECTIVE, PARAMETER):
                looks[record.probe] = len(recorded.looked)
                recorded.looked.append(Looked(record.kind, record.name, record.view[2][0]))
            elif isinstance(record, Probed) and record.probe in looks:
                at = looks.pop(record.probe)
                recorded.looked[at] = recorded.looked[at]._replace(checksum=record.checksum)
            elif isinstance(record, Probe):
                probe = record
            elif isinstance(record, Probed) and probe is not None:
                (nbytes,) = probe.view[2]
                if probe.kind == "read":
                    recorded.reads.add(record.probe, nbytes, record.checksum, *_bits(probe.name))
                else:
                    recorded.final.add(0, nbytes, record.checksum, 0, 0)
            elif isinstance(record, Stack):
                recorded._stacks[record.id] = record.frames
            elif isinstance(record, StreamName):
                recorded.streams[record.stream] = record.name
            elif isinstance(record, End):
                recorded.ended = True
        return recorded

    def place(self, moment: Moment, block: int) -> Place | None:
        """Return the place of a race's side; of a free, the first work of the next owner of the memory."""
        op = self._next(block) if moment.op is None else moment.op
        work = None if op is None else self.works.get(op)
        return None if work is None else work.place

    def time(self, place: Place, touch: Touch) -> int | None:
        """Return when the work at ``place`` accesses memory; None if this run never executed it."""
        op = self.works.number(place)
        work = None if op is None else self.works[op]
        if work is None or work.end < 0:
            return None
        return work.start if touch == "start" else work.end

    def _next(self, block: int) -> int | None:
        """Return the first work of the next owner of the block's memory."""
        at = self._reused.first(block=block)
        return None if at is None else self._reused[at].op

    def where(self, op: int) -> str:
        """Describe the work and its line, for a sentence."""
        return describe(self.works[op].place.kernel, self.frames(op))

    @property
    def stacks(self) -> Iterable[tuple[Frame, ...]]:
        """Return all stacks from which work was issued, or memory was allocated or freed."""
        return self._stacks.values()

    def frames(self, op: int) -> tuple[Frame, ...]:
        """Return the calls from which the work was issued, innermost first."""
        return self.stack(self.works[op].stack)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """Return the calls of a stack, innermost first."""
        return self._stacks.get(number, ())


RecordedRun = dict[int, Recorded]
"""The ranks of a run, by number."""


def begins(run: RecordedRun, other: RecordedRun) -> bool:
    """Check whether ``other`` begins as ``run`` does, whose traces were thinned."""
    return run.keys() == other.keys() and all(
        len(recorded.works) <= len(other[rank].works)
        and all(
            (op, work._replace(stack=0))
            == (again, other_work._replace(stack=0))  # stacks have other numbers in each run
            for (op, work), (again, other_work) in zip(recorded.works.each(), other[rank].works.each(), strict=False)
        )
        for rank, recorded in run.items()
    )


def load(folder: Path, *, kept: bool = False) -> RecordedRun:
    """Read the traces of a run. ``kept``: accept the remaining part of thinned traces.

    Raises :class:`streamrace.trace.records.TraceError`, and OSError if the temporary file cannot be written.
    """
    run: RecordedRun = {}
    spill = Spill()
    for path in sorted(folder.glob("rank*.trace")):
        reader = PartReader(path, kept=kept)
        rank = int(path.stem.removeprefix("rank"))
        run[rank] = Recorded.of(rank, reader.read(), spill)
        run[rank].thinned = reader.thinned
        reader.close()
    return run


def _bits(number: str) -> tuple[int, int]:
    """Return ``single`` and ``bits`` of a :class:`ValueRead` from a probe's name."""
    try:
        return 1, struct.unpack("<q", struct.pack("<d", float(number)))[0]
    except ValueError:
        return 0, 0


def _first_read(run: RecordedRun, other: RecordedRun, rank: int) -> tuple[ValueRead, ValueRead] | None:
    """Return the first read of a rank that differs, in both runs."""
    pairs = zip(run[rank].reads, other[rank].reads, strict=False)
    return next(((a, b) for a, b in pairs if (a.nbytes, a.checksum) != (b.nbytes, b.checksum)), None)


def numbers(run: RecordedRun, other: RecordedRun) -> tuple[float, float] | None:
    """Return the first number that the host read differently, in both runs; None if the first difference is none."""
    for rank in sorted(run):
        if rank not in other:
            return None
        if (reads := _first_read(run, other, rank)) is not None:
            before, now = (read.number for read in reads)
            return None if before is None or now is None else (before, now)
    return None


def difference(run: RecordedRun, other: RecordedRun) -> str:
    """Return what the second run read differently, as the subject of a sentence; empty if nothing differs.

    Compared are the host's reads, in the order of the program, then memory at the end, if both runs reached it.
    """
    for rank in sorted(run):
        on = f" on rank {rank}" if len(run) > 1 else ""
        if rank not in other:
            return f"that rank {rank} ran"
        if (reads := _first_read(run, other, rank)) is not None:
            return f"what the host reads{on} by {other[rank].where(reads[1].op)}"
    for rank in sorted(run):
        on = f" on rank {rank}" if len(run) > 1 else ""
        recorded, other_recorded = run[rank], other[rank]
        if recorded.ended != other_recorded.ended:
            return f"whether the program comes to its end{on}"
        if len(recorded.reads) != len(other_recorded.reads):
            return f"how often the host reads{on}"
        if recorded.ended and recorded.final != other_recorded.final:
            return f"what lies in memory{on} when the program ends"
    return ""
