"""Finds CUDA graphs that use memory as if it were still that of the tensor for which they were captured.

A graph has its memory by address. Three mistakes give wrong values although every access is ordered:

* A tensor that the graph uses is *freed* after the capture: a replay then accesses whatever has its memory
  (https://docs.pytorch.org/docs/stable/notes/cuda.html, "Constraints": static memory).
* Memory of a graph's pool is handed out again within the capture. A tensor from there that outlives its graph, or two
  graphs that share a pool and are replayed in another order than they were captured, find that a replay has
  *overwritten* it, as another tensor ("Sharing memory across captures"; ROCm/aiter issue 5393).

* A result is *kept* from replay to replay without a copy of its values: all of them are the last replay's
  (:mod:`streamrace.device.graph_outputs` notices the references).

The second is found by the allocation that each access belongs to: a read through one allocation of bytes that were last
written through another one is told, if they had been written through its own before. The order is that in which the
host issued the work, as races are found elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streamrace.detectors.base import Detector, GraphMemory
from streamrace.detectors.order.races import site
from streamrace.detectors.values.uninitialised import Range, Shadow, keeps_contents, runs
from streamrace.trace.graph_records import Dangling, GraphPart, KeptOutput, PoolPart, Replay
from streamrace.trace.records import Access, Alloc, Collective, Frame, Free, Launch, Stack, TraceRecord

_READ = frozenset({Launch, Collective, Stack, Alloc, Free, PoolPart, GraphPart, Replay, Dangling, KeptOutput})


class _Written(NamedTuple):
    part: int
    kernel: str
    stack: int


class _Ranges:
    """Disjoint ranges of bytes with a value each, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, _Written]] = []

    def over(self, lo: int, hi: int) -> Iterator[tuple[int, int, _Written]]:
        """Yield the ranges that overlap ``lo`` to ``hi``."""
        for at in range(max(0, bisect_right(self._starts, lo) - 1), len(self._starts)):
            begin, end, value = self._ranges[at]
            if begin >= hi:
                return
            if end > lo:
                yield begin, end, value

    def put(self, lo: int, hi: int, value: _Written) -> None:
        first = max(0, bisect_right(self._starts, lo) - 1)
        if first < len(self._ranges) and self._ranges[first][1] <= lo:
            first += 1
        last = first
        made: list[tuple[int, int, _Written]] = []
        while last < len(self._ranges) and self._ranges[last][0] < hi:
            begin, end, old = self._ranges[last]
            made += [(begin, lo, old)] * (begin < lo) + [(hi, end, old)] * (end > hi)
            last += 1
        made = sorted([*made, (lo, hi, value)], key=lambda item: item[0])
        self._ranges[first:last] = made
        self._starts[first:last] = [begin for begin, _, _ in made]


class _Rank:
    """Holds the pools and graphs of one rank."""

    def __init__(self) -> None:
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self.allocated: dict[int, int] = {}  # by block: the stack; of those that are alive, or that a graph may use
        self.uncaptured: set[int] = set()  # blocks that were allocated after the last capture
        self.graphs: set[int] = set()  # that were replayed
        self.parts: dict[int, PoolPart] = {}
        self.present: dict[int, dict[int, PoolPart]] = {}  # by block, by first byte: what is allocated there now
        self.unwritten: dict[int, Shadow] = {}  # by part
        self.written: dict[int, _Ranges] = {}  # by block
        self.captured: dict[tuple[int, int], list[PoolPart]] = {}  # by graph and launch: what it uses
        self.replay = Replay(0, 0, 0, 0)
        self.kept: set[int] = set()  # parts

    def frames(self, stack: int) -> tuple[Frame, ...]:
        return self.stacks.get(stack, ())


class GraphMemoryUse(Detector):
    """Follows the memory of CUDA graphs on each rank. Accepts the ranks' records in any interleaving."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._found: dict[tuple[object, ...], GraphMemory] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        for record in records:
            if type(record) not in _READ:
                continue
            if isinstance(record, (Launch, Collective)):
                if state.parts:
                    self._work(rank, state, record)
            elif isinstance(record, Stack):
                state.stacks[record.id] = record.frames
            elif isinstance(record, Alloc):
                state.allocated[record.block] = record.stack
                state.uncaptured.add(record.block)
            elif isinstance(record, Free):
                if record.block in state.uncaptured:
                    state.uncaptured.remove(record.block)
                    del state.allocated[record.block]
            elif isinstance(record, PoolPart):
                self._allocate(state, record)
            elif isinstance(record, GraphPart):
                state.uncaptured.clear()
                if record.part in state.parts:
                    state.captured.setdefault((record.graph, record.launch), []).append(state.parts[record.part])
            elif isinstance(record, Replay):
                state.replay = record
                if record.graph not in state.graphs:  # it may use nothing of a pool
                    state.graphs.add(record.graph)
                    state.uncaptured.clear()
            elif isinstance(record, KeptOutput):
                state.kept.add(record.part)
            elif isinstance(record, Dangling):
                self._dangling(rank, state, record)

    def findings(self) -> list[GraphMemory]:
        """Return one finding for each place that accesses the memory, and each tensor that it meant."""
        return list(self._found.values())

    @staticmethod
    def _allocate(state: _Rank, part: PoolPart) -> None:
        state.parts[part.part] = part
        state.unwritten[part.part] = Shadow(part.hi - part.lo)
        present = state.present.setdefault(part.block, {})
        for lo in [lo for lo, other in present.items() if lo < part.hi and part.lo < other.hi]:
            del present[lo]
        present[part.lo] = part

    def _work(self, rank: int, state: _Rank, record: Launch | Collective) -> None:
        launch = record.op - state.replay.op
        replayed = 0 <= launch < state.replay.launches
        known = state.captured.get((state.replay.graph, launch), ()) if replayed else None
        for write, accesses in ((False, record.reads), (True, record.writes)):
            for access in accesses:
                block, lo, hi, layout = access
                if block not in state.present:
                    continue
                there = state.present[block].values() if known is None else known
                part = next((part for part in there if part.block == block and part.lo <= lo < part.hi), None)
                if part is None:
                    continue
                touched = runs(lo, hi, layout)
                if not write and not replayed and part.part in state.kept:
                    self._keeps(rank, state, record, part, access)
                if not write or keeps_contents(record.kernel):
                    self._read(rank, state, record, part, touched)
                if write:
                    self._write(state, record, part, touched)

    def _read(
        self, rank: int, state: _Rank, record: Launch | Collective, part: PoolPart, touched: Iterable[Range]
    ) -> None:
        shadow = state.unwritten[part.part]
        written = state.written.get(part.block)
        lost, by = 0, None
        for lo, hi in touched if written is not None else ():
            assert written is not None
            for begin, end, last in written.over(lo, hi):
                begin, end = max(begin, lo, part.lo), min(end, hi, part.hi)
                if last.part == part.part or begin >= end:
                    continue
                # What nothing wrote for this tensor is uninitialised, which is another finding.
                unwritten = shadow.within([(begin - part.lo, end - part.lo)]) if shadow else []
                if left := end - begin - sum(until - start for start, until in unwritten):
                    lost, by = lost + left, last
        if by is not None:
            self._add(
                rank, "overwritten", "read", record.kernel, state.frames(record.stack), state.frames(part.stack), lost,
                by.kernel, state.frames(by.stack),
            )  # fmt: skip

    def _keeps(self, rank: int, state: _Rank, record: Launch | Collective, part: PoolPart, access: Access) -> None:
        last = next((value for *_, value in state.written[part.block].over(*access[1:3])), None)
        if last is not None:
            self._add(
                rank, "kept", "read", record.kernel, state.frames(record.stack), state.frames(part.stack),
                access[2] - access[1], last.kernel, state.frames(last.stack),
            )  # fmt: skip

    @staticmethod
    def _write(state: _Rank, record: Launch | Collective, part: PoolPart, touched: Iterable[Range]) -> None:
        shadow, written = state.unwritten[part.part], state.written.setdefault(part.block, _Ranges())
        for lo, hi in touched:
            written.put(lo, hi, _Written(part.part, record.kernel, record.stack))
            if shadow:
                shadow.write([(lo - part.lo, hi - part.lo)])

    def _dangling(self, rank: int, state: _Rank, record: Dangling) -> None:
        meant, owner = state.allocated.get(record.block, 0), state.allocated.get(record.owner, 0)
        self._add(
            rank, "freed", "write" if record.writes else "read", record.kernel, state.frames(record.stack),
            state.frames(meant), record.hi - record.lo, "" if record.owner < 0 else "another tensor",
            state.frames(owner) if record.owner >= 0 else (),
        )  # fmt: skip

    def _add(
        self, rank: int, kind: str, access: str, kernel: str, stack: tuple[Frame, ...], allocated: tuple[Frame, ...],
        nbytes: int, other: str, other_stack: tuple[Frame, ...],
    ) -> None:  # fmt: skip
        key = kind, access, kernel, site(stack), site(allocated)
        before = self._found.get(key)
        ranks = tuple(sorted({*(before.ranks if before else ()), rank}))
        found = GraphMemory(kind, access, kernel, stack, allocated, nbytes, other, other_stack, 1, ranks)
        self._found[key] = found if before is None else before.again(found, ranks)
