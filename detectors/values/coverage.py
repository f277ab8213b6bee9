"""Detects uncovered memory: a part of a secondary partition that is read, and that nothing ever wrote.

Order plays no part here: no work of the run writes these bytes before they are read, whenever it may
run. The bytes still hold whatever the allocator left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from streamrace.detectors.base import Detector, Uncovered
from streamrace.trace.records import Alloc, Collective, Frame, Free, Label, Launch, Stack, TraceRecord

_KIND = "secondary"


class _Read(NamedTuple):
    lo: int
    hi: int
    kernel: str
    stack: int


class _Block:
    """An allocation. ``written``: disjoint ranges, in order. ``reads``: of bytes outside these ranges."""

    __slots__ = ("names", "reads", "written")

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.reads: list[_Read] = []
        self.names: set[str] = set()


class Coverage(Detector):
    """Follows the writes to each block of each rank. Accepts the ranks' records in any interleaving."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, _Block]] = defaultdict(dict)  # by rank and number
        self._stacks: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._found: dict[tuple[str, tuple[Frame, ...]], tuple[list[int], set[str], set[int]]] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        blocks = self._blocks[rank]
        for record in records:
            kind = type(record)
            if kind is Launch or kind is Collective:
                assert isinstance(record, (Launch, Collective))
                for number, lo, hi, _ in record.reads:
                    block = blocks.get(number)
                    if block is not None and not _within(block.written, lo, hi):
                        block.reads.append(_Read(lo, hi, record.kernel, record.stack))
                for number, lo, hi, _ in record.writes:
                    block = blocks.get(number)
                    if block is not None and not _within(block.written, lo, hi):
                        _write(block, lo, hi)
            elif kind is Alloc:
                assert isinstance(record, Alloc)
                blocks[record.block] = _Block()
            elif isinstance(record, Free):
                self._close(rank, blocks.pop(record.block, None))
            elif isinstance(record, Label) and record.kind == _KIND:
                labelled = blocks.get(record.block)
                if labelled is not None:
                    labelled.names.add(record.name)
            elif isinstance(record, Stack):
                self._stacks[rank, record.id] = record.frames

    def findings(self) -> list[Uncovered]:
        """Return the findings so far, including those in live blocks."""
        for rank, blocks in self._blocks.items():
            for block in blocks.values():
                self._close(rank, block)
                block.reads.clear()
        return [
            Uncovered(kernel, stack, len(sizes), max(sizes), tuple(sorted(names)), tuple(sorted(ranks)))
            for (kernel, stack), (sizes, names, ranks) in sorted(self._found.items())
        ]

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


def _within(written: list[tuple[int, int]], lo: int, hi: int) -> bool:
    """Check whether one range covers all bytes from ``lo`` to ``hi``."""
    for start, end in written:  # noqa: SIM110 - any() of a generator takes three times as long, and this is asked often
        if start <= lo and hi <= end:
            return True
    return False


def _write(block: _Block, lo: int, hi: int) -> None:
    separate = [(start, end) for start, end in block.written if end < lo or start > hi]
    touching = [(start, end) for start, end in block.written if not (end < lo or start > hi)]
    merged = (min([lo, *(start for start, _ in touching)]), max([hi, *(end for _, end in touching)]))
    block.written = sorted([*separate, merged]) if separate else [merged]
