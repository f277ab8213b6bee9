"""Detects pinned memory of which the program holds an array or an address: accesses through these are in no trace.

``tensor.numpy()`` of pinned memory, and DLPack, are traced as a read at that moment. While the array lives, accesses
through it can race with the device only if the device has work on the same memory that is not ordered before that
moment: work that the host has not waited for by then, or that is issued later. Only such blocks are reported.

An address (``data_ptr()``) has no end, and most programs only compare it, so only the moment counts at which it is
taken: a program usually uses it right then, and later work is not reported for a program that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from streamrace.detectors.base import Detector, Unseen
from streamrace.detectors.order.clocks import Threads
from streamrace.detectors.order.races import describe
from streamrace.detectors.order.streams import StreamOrder
from streamrace.trace.records import (
    HOST_STREAM,
    Alloc,
    Collective,
    Export,
    Frame,
    Free,
    HostWait,
    Launch,
    Record,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
)

_HOLDING = ("numpy", "dlpack")  # arrays, whose release is traced
_RELEASED = tuple(f"{how} released" for how in _HOLDING)


class _Rank:
    """The order within one rank, and the arrays that its program holds on the host's memory."""

    def __init__(self, rank: int) -> None:
        self._order = StreamOrder(rank, Threads())
        self._hosts: set[int] = set()
        self._work: dict[int, dict[int, int]] = {}  # on the host's blocks: the last epoch, by block and thread
        self._held: dict[int, list[Export]] = {}  # by block: the live arrays
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self.reported: dict[tuple[str, tuple[Frame, ...]], None] = {}  # an ordered set
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Launch: self._launch,
            Collective: self._launch,
            Record: self._order.record,
            Wait: self._order.wait,
            HostWait: self._order.host_wait,
            Alloc: self._alloc,
            Free: self._free,
            Export: self._export,
            StreamName: self._stream_name,
            Stack: self._stack,
        }

    def feed(self, records: Iterable[TraceRecord]) -> None:
        handlers = self._handlers
        for record in records:
            handle = handlers.get(type(record))
            if handle is not None:
                handle(record)

    def _alloc(self, record: Alloc) -> None:
        if record.stream < 0:
            self._work[record.block] = {}

    def _free(self, record: Free) -> None:
        if self._work.pop(record.block, None) is not None:
            self._held.pop(record.block, None)

    def _stream_name(self, record: StreamName) -> None:
        if record.name == HOST_STREAM:
            self._hosts.add(record.stream)

    def _stack(self, record: Stack) -> None:
        self._stacks[record.id] = record.frames

    def _launch(self, record: Launch | Collective) -> None:
        stream = self._order.on(record.stream)
        stream.epoch += 1
        if not self._work or record.stream in self._hosts:
            return
        for block, *_ in (*record.reads, *record.writes):
            work = self._work.get(block)
            if work is not None:
                work[stream.thread] = stream.epoch
                for export in self._held.get(block, ()):
                    self._report(export)

    def _export(self, export: Export) -> None:
        work = self._work.get(export.block)
        if work is None:
            return
        exports = self._held.setdefault(export.block, [])
        if export.how in _RELEASED:
            if exports:
                exports.pop()
            return
        if export.how in _HOLDING:
            exports.append(export)
        if any(self._order.host.known[thread] < epoch for thread, epoch in work.items()):
            self._report(export)

    def _report(self, export: Export) -> None:
        self.reported[export.how, self._stacks.get(export.stack, ())] = None


class Exports(Detector):
    """Reports pinned memory that escapes the trace. Feed it all ranks' records, each rank's in order."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        if rank not in self._ranks:
            self._ranks[rank] = _Rank(rank)
        self._ranks[rank].feed(records)

    def findings(self) -> list[Unseen]:
        """Return one finding for each place at which such an array or address was taken."""
        return [
            Unseen(
                f"pinned memory was given away by {describe(how, stack)}, and the device has work on it that no wait "
                "puts before that: what the program does through it then is not seen"
            )
            for how, stack in {key: None for rank in sorted(self._ranks) for key in self._ranks[rank].reported}
        ]
