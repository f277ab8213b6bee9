"""Finds reads of memory that nothing has written since its allocation, which *may* lead to undefined values.

Keeps a shadow of each allocation (Memcheck's rule; Nethercote & Seward 2007) that records which bytes were written, in
the order in which the host issued the work; the order between streams plays no part. Whether anything depends on such
a read is not reported here: sound programs copy, send and mask out padding. To find out, the program is run again with
other bytes in such memory (:mod:`streamrace.fuzz.live.uninitialised`), so doubtful cases count as read.

Pinned memory is left out, as the host's writes to it are not traced, and so is a block once the program takes
its address. The gaps of an access with more than :data:`MOST` runs count as written, and so does a block
in more than that many pieces: this bounds memory and time per access.
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
_BLOCKS = 256  # named per place

# In-place operators that overwrite everything. All others read the old contents, or keep some of them.
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
    """The bytes of one block that nothing has written, as disjoint ranges, in order."""

    __slots__ = ("ends", "starts")

    def __init__(self, nbytes: int) -> None:
        self.starts, self.ends = [0], [nbytes]

    def __bool__(self) -> bool:
        return bool(self.starts)

    def within(self, touched: Sequence[Range]) -> list[Range]:
        """Return the unwritten parts of these ranges, which are in order."""
        return self._split(touched)[0]

    def write(self, written: Sequence[Range]) -> list[Range]:
        """Mark these ranges, which are in order, as written; return the parts that were unwritten."""
        unwritten, remaining, first, last = self._split(written)
        self.starts[first:last] = [start for start, _ in remaining]
        self.ends[first:last] = [end for _, end in remaining]
        return unwritten

    def _split(self, written: Sequence[Range]) -> tuple[list[Range], list[Range], int, int]:
        """Split the unwritten ranges near ``written``: parts inside and outside of it, and the index range replaced."""
        lo, hi = written[0][0], written[-1][1]
        first = last = bisect_right(self.ends, lo)
        inside: list[Range] = []
        outside: list[Range] = []
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
                    outside.append((start, begin))
                    start = begin
                inside.append((start, min(until, end)))
                start = min(until, end)
                if until > end:
                    break
                at += 1
            if start < end:
                outside.append((start, end))
        return inside, outside, first, last


class _Block:
    __slots__ = ("copied", "nbytes", "number", "shadow", "stack", "touched")

    def __init__(self, number: int, nbytes: int, stack: int) -> None:
        self.number, self.nbytes, self.stack = number, nbytes, stack
        self.shadow = Shadow(nbytes)
        self.touched = False
        self.copied: _Read | None = None  # the first read, if only copies have read the block


@dataclass
class _Place:
    """A place that allocates such blocks. The reported read is the first of the first block."""

    kernel: str
    stack: tuple[Frame, ...]
    allocated: tuple[Frame, ...]
    ranges: tuple[tuple[int, int], ...]
    nbytes: int
    copied: bool
    count: int
    blocks: list[tuple[int, int]]


class UnwrittenReads(Detector):
    """Follows the writes to each block of each rank. Accepts the ranks' records in any interleaving."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, _Block]] = {}  # of each rank, the blocks not fully written
        self._stacks: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._found: dict[tuple[int, Frame | None], _Place] = {}
        self._touched: set[Frame | None] = set()  # allocation sites of which a block was at least partly written

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
        """Return one finding for each place that allocates, by rank and then in the order of reads."""
        for rank, blocks in self._blocks.items():
            for block in blocks.values():
                self._close(rank, block)
        of: dict[Frame | None, list[_Place]] = {}
        for (_, place), reported in sorted(self._found.items(), key=lambda item: item[0][0]):
            of.setdefault(place, []).append(reported)
        return [
            UnwrittenRead(
                first.kernel, first.stack, first.allocated, first.ranges, first.nbytes,
                sum(place.count for place in places), tuple(block for place in places for block in place.blocks),
                where not in self._touched,
            )
            for where, places in of.items()
            for first in [min(places, key=lambda place: place.copied)]
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
        else:  # later reads of the block are not reported
            block.copied = None
            self._report(rank, block, read, copied=False)

    def _write(self, rank: int, blocks: dict[int, _Block], record: Launch | Collective, access: Access) -> None:
        block = blocks[access[0]]
        in_place = keeps_contents(record.kernel)
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
            self._report(rank, block, block.copied, copied=True)
            block.copied = None

    def _report(self, rank: int, block: _Block, read: _Read, *, copied: bool) -> None:
        allocated = self._stacks.get((rank, block.stack), ())
        key = rank, site(allocated)
        reported = self._found.get(key)
        if reported is None or (reported.copied and not copied):
            stack = self._stacks.get((rank, read.stack), ())
            previous = reported or _Place("", (), (), (), 0, copied, 0, [])
            reported = self._found[key] = _Place(
                read.kernel, stack, allocated, read.ranges, block.nbytes, copied, previous.count, previous.blocks
            )
        place = (rank, block.number)
        if reported.blocks and reported.blocks[-1] == place:
            return
        reported.count += 1
        if len(reported.blocks) < _BLOCKS:
            reported.blocks.append(place)


def keeps_contents(kernel: str) -> bool:
    """Check whether an operator that writes in place also reads the old contents, or keeps a part of them."""
    return kernel.endswith("_") and kernel not in _FILLS


def runs(lo: int, hi: int, layout: Layout | None) -> Sequence[Range]:
    """Return the bytes of an access as ranges, in order; as a single range if they are too many."""
    if layout is None:
        return [(lo, hi)]
    offsets, width = _offsets(*layout[:3])
    return [(lo + at, lo + at + width) for at in offsets] if offsets else [(lo, hi)]


@lru_cache(maxsize=1 << 12)
def _offsets(width: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[int], int]:
    """Return the starts of the runs, and their length; no starts if they are too many."""
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
