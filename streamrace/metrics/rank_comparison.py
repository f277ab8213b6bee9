"""Compares what two ranks do: their traces in a normal form, without what must differ between ranks.

Ranks of one program differ in which part of a whole they own, and in which ranks their groups have. So in the normal
form

* a range of bytes counts by its block, its length and its layout; its offset in the block counts only if the range is
  more than half of the block, as it may be a rank's shard otherwise: rank 3's shard of a gathered buffer is rank 0's,
* a group counts by how many ranks and nodes it has, and how many of its ranks are on this rank's node; a root by
  whether it is this rank,
* a call stack counts by its places in the source, work by its duration, and not by when it runs.

All else is kept, in the order in which the host did it: kernels, streams, events and their waits, allocations
and frees with their bytes, collectives with theirs, labels. Equal digests mean that one trace stands for the other.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamrace.trace import wording
from streamrace.trace.files import TraceReader
from streamrace.trace.records import (
    Alloc,
    Begin,
    Collective,
    Frame,
    Free,
    Group,
    HostWait,
    Label,
    Launch,
    Phase,
    Record,
    RecordStream,
    Reuse,
    Stack,
    TraceRecord,
    Wait,
)


@dataclass(frozen=True)
class Likeness:
    """A rank's trace in the normal form. ``marks``: a checksum for each record that counts."""

    marks: array[int]

    @property
    def digest(self) -> int:
        """Return a number that is the same for ranks that do the same."""
        return zlib.crc32(self.marks.tobytes())

    def parts_from(self, other: Likeness) -> int | None:
        """Return the number of the first counted record that differs; None if the traces are alike."""
        if self.marks == other.marks:
            return None
        pairs = enumerate(zip(self.marks, other.marks, strict=False))
        return next((at for at, (left, right) in pairs if left != right), min(len(self.marks), len(other.marks)))


class LikenessMetrics:
    """Computes a rank's normal form from its records, in order. ``nodes_of[rank]``: the node of each rank of the world.

    ``roots``: whether it counts that a rank is the one that sends to the others of its group, or receives from them.
    """

    def __init__(self, nodes_of: Sequence[int], *, roots: bool = True) -> None:
        self._nodes_of = nodes_of
        self._rank = 0
        self._stacks: dict[int, int] = {}
        self._groups: dict[int, tuple[int, int, int]] = {}
        self._blocks: dict[int, int] = {}
        self._roots = roots
        self._marks = array("L")

    def feed(self, records: Iterable[TraceRecord]) -> None:
        """Take the next records."""
        for record in records:
            self.mark(record)

    def mark(self, record: TraceRecord) -> bool:
        """Take the next record; return whether it counts."""
        if isinstance(record, Begin):
            self._rank = record.rank
        elif isinstance(record, Stack):
            self._stacks[record.id] = zlib.crc32(repr(record.frames).encode())
        elif isinstance(record, Group):
            nodes = [self._nodes_of[rank] for rank in record.ranks]
            self._groups[record.group] = (len(nodes), len(set(nodes)), nodes.count(self._nodes_of[self._rank]))
        else:
            normal = self._normal(record)
            if normal is not None:
                self._marks.append(zlib.crc32(repr((type(record).__name__, normal)).encode()))
            return normal is not None
        return False

    def _normal(self, record: Any) -> Any:
        if isinstance(record, Launch):
            return self._work(record)
        if isinstance(record, Collective):
            group, number, nominal = self._groups.get(record.group), record.number, record.nominal
            if record.root >= 0 and not self._roots:
                touched = self._ranges((*record.reads, *record.writes))
                return record.stream, record.kernel, touched, group, number, nominal
            return *self._work(record), group, number, record.root >= 0 and record.root == self._rank, nominal
        if isinstance(record, Alloc):
            self._blocks[record.block] = record.nbytes
            return record.block, record.nbytes, record.stream, record.dtype
        if isinstance(record, Free):
            return record.block
        if isinstance(record, Reuse):
            return record._replace(stack=self._stacks.get(record.stack, 0))
        if isinstance(record, (Record, RecordStream, Phase)):
            return tuple(record)
        if isinstance(record, Wait):
            return record.stream, record.marker, self._stacks.get(record.stack)
        if isinstance(record, HostWait):
            return record.marker, record.how, self._stacks.get(record.stack)
        if isinstance(record, Label):
            return record.block, record.hi - record.lo, record.kind, record.name
        return None

    def _work(self, record: Launch | Collective) -> tuple[Any, ...]:
        touched = (self._ranges(record.reads), self._ranges(record.writes))
        return record.stream, record.kernel, touched, self._stacks.get(record.stack), record.end - record.start

    def _ranges(self, accesses: Sequence[Any]) -> list[Any]:
        blocks = self._blocks
        return [
            (block, lo if 2 * (hi - lo) > blocks.get(block, 0) else -1, hi - lo, layout)
            for block, lo, hi, layout in accesses
        ]

    def result(self) -> Likeness:
        """Return the normal form so far."""
        return Likeness(self._marks)


def described(trace: Path, nodes_of: Sequence[int], number: int, *, roots: bool = True) -> str:
    """Describe, for the user, the first work at or behind counted record ``number``: kernel, bytes, time and place."""
    metric, reader = LikenessMetrics(nodes_of, roots=roots), TraceReader(trace)
    stacks: dict[int, tuple[Frame, ...]] = {}
    at = -1
    try:
        for record in reader.read():
            if isinstance(record, Stack):
                stacks[record.id] = record.frames
            at += metric.mark(record)
            if at >= number and isinstance(record, (Launch, Collective)):
                return _description(record, stacks.get(record.stack, ()))
    finally:
        reader.close()
    return "nothing more"


def _description(record: Launch | Collective, frames: Sequence[Frame]) -> str:
    where = f" at {wording.frame(frames[0])}" if frames else ""
    reads, writes = (sum(access[2] - access[1] for access in accesses) for accesses in (record.reads, record.writes))
    lasts = f"{(record.end - record.start) / 1000:,.1f} us"
    return f"{record.kernel} on stream {record.stream}, {reads:,} bytes read, {writes:,} written, {lasts}{where}"
