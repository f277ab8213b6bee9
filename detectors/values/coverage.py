"""Uncovered: a part of a secondary partition that is read, and that nothing ever wrote.

Order plays no part here: no work of the run writes these bytes before they are read, whenever it may
run. What is there is what the allocator left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from detectors.base import Detector, Uncovered
from simgpu.trace import Access, Alloc, Collective, Frame, Free, Label, Launch, Stack, TraceRecord

_KIND = "secondary"


class _Read(NamedTuple):
    lo: int
    hi: int
    kernel: str
    stack: int


@dataclass
class _Block:
    """An allocation. ``written``: disjoint ranges, in order. ``reads``: of bytes outside of them."""

    nbytes: int
    written: list[tuple[int, int]] = field(default_factory=list)
    reads: list[_Read] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


class Coverage(Detector):
    """Follows what is written in each block of each rank. Feed it the ranks' records, in any interleaving."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._stacks: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._found: dict[tuple[str, tuple[Frame, ...]], tuple[list[int], set[str], set[int]]] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            kind = type(record)
            if kind is Launch or kind is Collective:
                assert isinstance(record, (Launch, Collective))
                for access in record.reads:
                    self._read(rank, access, record)
                for access in record.writes:
                    self._write(rank, access)
            elif isinstance(record, Alloc):
                self._blocks[rank, record.block] = _Block(record.nbytes)
            elif isinstance(record, Free):
                self._close(rank, self._blocks.pop((rank, record.block), None))
            elif isinstance(record, Label) and record.kind == _KIND:
                block = self._blocks.get((rank, record.block))
                if block is not None:
                    block.names.add(record.name)
            elif isinstance(record, Stack):
                self._stacks[rank, record.id] = record.frames

    def findings(self) -> list[Uncovered]:
        """What was found so far, also in blocks that live still."""
        for (rank, _), block in self._blocks.items():
            self._close(rank, block)
            block.reads.clear()
        return [
            Uncovered(kernel, stack, len(sizes), max(sizes), tuple(sorted(names)), tuple(sorted(ranks)))
            for (kernel, stack), (sizes, names, ranks) in sorted(self._found.items())
        ]

    def _read(self, rank: int, access: Access, record: Launch | Collective) -> None:
        number, lo, hi, _ = access
        block = self._blocks.get((rank, number))
        if block is None or any(start <= lo and hi <= end for start, end in block.written):
            return
        block.reads.append(_Read(lo, hi, record.kernel, record.stack))

    def _write(self, rank: int, access: Access) -> None:
        number, lo, hi, _ = access
        block = self._blocks.get((rank, number))
        if block is None or any(start <= lo and hi <= end for start, end in block.written):
            return
        apart = [(start, end) for start, end in block.written if end < lo or start > hi]
        near = [(start, end) for start, end in block.written if not (end < lo or start > hi)]
        merged = (min([lo, *(start for start, _ in near)]), max([hi, *(end for _, end in near)]))
        block.written = sorted([*apart, merged])

    def _close(self, rank: int, block: _Block | None) -> None:
        if block is None or not block.names:
            return
        for read in block.reads:
            key = (read.kernel, self._stacks.get((rank, read.stack), ()))
            sizes, names, ranks = self._found.setdefault(key, ([], set(), set()))
            written = sum(max(0, min(read.hi, end) - max(read.lo, start)) for start, end in block.written)
            sizes.append(read.hi - read.lo - written)
            names |= block.names
            ranks.add(rank)
