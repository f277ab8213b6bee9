"""Reads of memory that nothing has written since it was handed out: what *may* make a value that nobody wrote.

A shadow of each allocation (Memcheck's rule; Nethercote & Seward 2007) that says what of it was written, in the order
in which the host issued the work: how it is ordered plays no part. Whether anything depends on such a read is not known
here: padding is copied, sent and masked out in sound programs. That is found out by running the program again with
other bytes there (:mod:`streamrace.fuzz.live.unwritten`), so what is unsure counts as read.

Pinned memory is left out, as the host writes there unseen, and so is a block from the moment on when the program takes
its address. What an access with more than :data:`MOST` runs leaves between them counts as written, and so does a block
in more than so many pieces: what is kept and done for an access is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from streamrace.detectors.base import Detector, UnwrittenRead
from streamrace.detectors.order.overlap import Layout
from streamrace.detectors.order.races import site
from streamrace.trace.records import Access, Alloc, Collective, Export, Frame, Free, Launch, Stack, TraceRecord

MOST = 1 << 10  # runs of an access, and ranges of a block
_BLOCKS = 256  # of a place are named

# In-place operators that leave nothing of what was there. All others read it, or leave some of it.
_FILLS = frozenset(
    f"aten::{name}_"
    for name in (
        *("zero", "fill", "copy", "normal", "uniform", "random", "bernoulli", "exponential", "geometric", "cauchy"),
        *("log_normal", "_foreach_zero", "_foreach_copy", "set_data", "eye"),
    )
)
_COPIES = frozenset(
    f"aten::{name}"
    for name in ("copy_", "clone", "cat", "stack", "_foreach_copy_", "split_with_sizes_copy", "_to_copy")
)


Range: TypeAlias = tuple[int, int]
"""Bytes from the first (inclusive) to the second (exclusive)."""


class _Read(NamedTuple):
    kernel: str
    stack: int
    ranges: tuple[tuple[int, int], ...]


class Shadow:
    """The bytes of one block that nothing has written, as ranges that lie apart, in order."""

    __slots__ = ("ends", "starts")

    def __init__(self, nbytes: int) -> None:
        self.starts, self.ends = [0], [nbytes]

    def __bool__(self) -> bool:
        return bool(self.starts)

    def within(self, touched: Sequence[Range]) -> list[Range]:
        """Those among these ranges, which lie in order."""
        return self._split(touched)[0]

    def write(self, written: Sequence[Range]) -> list[Range]:
        """These ranges, which lie in order, were written; gives those among them that nothing had written."""
        found, left, first, last = self._split(written)
        self.starts[first:last] = [start for start, _ in left]
        self.ends[first:last] = [end for _, end in left]
        return found

    def _split(self, written: Sequence[Range]) -> tuple[list[Range], list[Range], int, int]:
        """What is among them and what is not, of the ranges from one place to another one."""
        lo, hi = written[0][0], written[-1][1]
        first = last = bisect_right(self.ends, lo)
        found: list[Range] = []
        left: list[Range] = []
        at = 0
        while last < len(self.starts) and self.starts[last] < hi:
            start, end = self.starts[last], self.ends[last]
            last += 1
            while at < len(written) and written[at][1] <= start:
                at += 1
            while at < len(written) and written[at][0] < end:
                begin, until = written[at]
                if begin >= until:
                    at += 1
                    continue
                if start < begin:
                    left.append((start, begin))
                    start = begin
                found.append((start, min(until, end)))
                start = min(until, end)
                if until > end:
                    break
                at += 1
            if start < end:
                left.append((start, end))
        return found, left, first, last


class _Block:
    __slots__ = ("copied", "nbytes", "number", "shadow", "stack", "touched")

    def __init__(self, number: int, nbytes: int, stack: int) -> None:
        self.number, self.nbytes, self.stack = number, nbytes, stack
        self.shadow = Shadow(nbytes)
        self.touched = False
        self.copied: _Read | None = None  # the first read, where only copies have been made


@dataclass
class _Place:
    """Where such blocks are allocated. The first read that is told is that of the first block."""

    kernel: str
    stack: tuple[Frame, ...]
    allocated: tuple[Frame, ...]
    ranges: tuple[tuple[int, int], ...]
    nbytes: int
    copied: bool
    count: int
    blocks: list[tuple[int, int]]


class UnwrittenReads(Detector):
    """Follows what is written in each block of each rank. Feed it the ranks' records, in any interleaving."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, _Block]] = {}  # of each rank, those that are not wholly written
        self._stacks: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._found: dict[tuple[int, Frame | None], _Place] = {}
        self._touched: set[Frame | None] = set()  # where blocks were allocated of which something was written

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        blocks = self._blocks.setdefault(rank, {})
        for record in records:
            kind = type(record)
            if kind is Launch or kind is Collective:
                assert isinstance(record, (Launch, Collective))
                for access in record.reads:
                    if access[0] in blocks:
                        self._read(rank, blocks[access[0]], record, access)
                for access in record.writes:
                    if access[0] in blocks:
                        self._write(rank, blocks, record, access)
            elif kind is Alloc:
                assert isinstance(record, Alloc)
                if record.stream >= 0 and record.nbytes:
                    blocks[record.block] = _Block(record.block, record.nbytes, record.stack)
            elif kind is Free or kind is Export:
                assert isinstance(record, (Free, Export))
                self._close(rank, blocks.pop(record.block, None))
            elif isinstance(record, Stack):
                self._stacks[rank, record.id] = record.frames

    def findings(self) -> list[UnwrittenRead]:
        """By rank, and then as they were read, one for each place that allocates."""
        for rank, blocks in self._blocks.items():
            for block in blocks.values():
                self._close(rank, block)
        of: dict[Frame | None, list[_Place]] = {}
        for (_, where), one in sorted(self._found.items(), key=lambda item: item[0][0]):
            of.setdefault(where, []).append(one)
        return [
            UnwrittenRead(
                first.kernel, first.stack, first.allocated, first.ranges, first.nbytes,
                sum(one.count for one in places), tuple(block for one in places for block in one.blocks),
                where not in self._touched,
            )
            for where, places in of.items()
            for first in [min(places, key=lambda one: one.copied)]
        ]  # fmt: skip

    def _read(self, rank: int, block: _Block, record: Launch | Collective, access: Access) -> None:
        copy = record.kernel in _COPIES or type(record) is Collective
        if copy and block.copied is not None:
            return
        ranges = (block.shadow.within if copy else block.shadow.write)(runs(*access[1:]))
        if not ranges:
            return
        read = _Read(record.kernel, record.stack, tuple(ranges))
        if copy:
            block.copied = read
        else:  # once is enough
            block.copied = None
            self._told(rank, block, read, copied=False)

    def _write(self, rank: int, blocks: dict[int, _Block], record: Launch | Collective, access: Access) -> None:
        block = blocks[access[0]]
        in_place = record.kernel.endswith("_") and record.kernel not in _FILLS
        if in_place:
            self._read(rank, block, record, access)
        if not block.touched:
            block.touched = True
            self._touched.add(site(self._stacks.get((rank, block.stack), ())))
        if access[3] is None and access[1] <= 0 and access[2] >= block.nbytes:
            self._close(rank, blocks.pop(block.number))
            return
        if not in_place:
            block.shadow.write(runs(*access[1:]))
        if not block.shadow or len(block.shadow.starts) > MOST:
            self._close(rank, blocks.pop(block.number))

    def _close(self, rank: int, block: _Block | None) -> None:
        if block is not None and block.copied is not None:
            self._told(rank, block, block.copied, copied=True)
            block.copied = None

    def _told(self, rank: int, block: _Block, read: _Read, *, copied: bool) -> None:
        allocated = self._stacks.get((rank, block.stack), ())
        key = rank, site(allocated)
        known = self._found.get(key)
        if known is None or (known.copied and not copied):
            stack = self._stacks.get((rank, read.stack), ())
            before = known or _Place("", (), (), (), 0, copied, 0, [])
            known = self._found[key] = _Place(
                read.kernel, stack, allocated, read.ranges, block.nbytes, copied, before.count, before.blocks
            )
        mine = (rank, block.number)
        if known.blocks and known.blocks[-1] == mine:
            return
        known.count += 1
        if len(known.blocks) < _BLOCKS:
            known.blocks.append(mine)


def runs(lo: int, hi: int, layout: Layout | None) -> Sequence[Range]:
    """The bytes of an access as ranges, in order; as one, where they are too many."""
    if layout is None:
        return [(lo, hi)]
    offsets, width = _offsets(*layout[:3])
    return [(lo + at, lo + at + width) for at in offsets] if offsets else [(lo, hi)]


@lru_cache(maxsize=1 << 12)
def _offsets(width: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int], int]:
    """Where the runs begin, and how long each is; no run, where they are too many."""
    dims = [(stride, size) for stride, size in sorted(zip(strides, sizes, strict=True)) if size != 1]
    while dims and dims[0][0] <= width:
        stride, size = dims.pop(0)
        width += stride * (size - 1)
    offsets = [0]
    for stride, size in reversed(dims):
        if len(offsets) * size > MOST:
            return [], width
        offsets = [at + step for at in offsets for step in range(0, stride * size, stride)]
    return sorted(set(offsets)), width
