"""Memory of the host that the program holds an address of: what it does there, nobody sees.

``tensor.numpy()`` of pinned memory is seen as a read at that moment. While the array lives, what is done through it
can race with the device only where the device has work on the same memory that does not come before the moment: work
that the host has not waited for then, or that is given to a stream later. Only such blocks are told. An address that
was merely asked for (``data_ptr()``) is not: programs compare them.
"""

from __future__ import annotations

from collections.abc import Iterable

from detectors.order.clocks import Snapshot, Stream, Threads
from detectors.order.races import describe
from simgpu.trace import (
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

_HOLDING, _RELEASED = "numpy", "numpy released"  # what hands memory on, and that it ended


class _Rank:
    """The order within one rank, as far as its host and streams make it, and who was given the host's memory."""

    def __init__(self) -> None:
        self._threads = Threads()
        self._host = self._threads.host()
        self._streams: dict[int, Stream] = {}
        self._markers: dict[int, Snapshot] = {}
        self._hosts: set[int] = set()
        self._work: dict[int, dict[int, int]] = {}  # on the host's blocks: the epoch of the last, by block and thread
        self._given: dict[int, list[Export]] = {}  # by block: the arrays that live
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self.told: dict[tuple[str, tuple[Frame, ...]], int] = {}

    def feed(self, records: Iterable[TraceRecord]) -> None:
        for record in records:
            if isinstance(record, (Launch, Collective)):
                self._launch(record)
            elif isinstance(record, Record):
                stream = self._on(record.stream)
                self._markers[record.marker] = stream.position()
                stream.unforgotten.append((stream.epoch, record.marker))
            elif isinstance(record, Wait):
                if record.marker in self._markers:
                    self._on(record.stream).wait(self._markers[record.marker])
            elif isinstance(record, HostWait):
                if record.marker in self._markers:
                    self._host_waits(self._markers[record.marker])
            elif isinstance(record, Alloc):
                if record.stream < 0:
                    self._work[record.block] = {}
            elif isinstance(record, Free):
                self._work.pop(record.block, None)
                self._given.pop(record.block, None)
            elif isinstance(record, Export):
                self._export(record)
            elif isinstance(record, StreamName):
                if record.name == HOST_STREAM:
                    self._hosts.add(record.stream)
            elif isinstance(record, Stack):
                self._stacks[record.id] = record.frames

    def _on(self, number: int) -> Stream:
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = self._threads.stream(number)
        stream.enqueue(self._host)
        return stream

    def _host_waits(self, position: Snapshot) -> None:
        self._host.wait(position)
        for stream in self._streams.values():  # what the host knows, all later work knows: its markers can go
            while stream.unforgotten and stream.unforgotten[0][0] <= self._host.known[stream.thread]:
                self._markers.pop(stream.unforgotten.popleft()[1], None)

    def _launch(self, record: Launch | Collective) -> None:
        stream = self._on(record.stream)
        stream.epoch += 1
        if record.stream in self._hosts:
            return
        for block, *_ in (*record.reads, *record.writes):
            work = self._work.get(block)
            if work is not None:
                work[stream.thread] = stream.epoch
                for export in self._given.get(block, ()):
                    self._tell(export)

    def _export(self, export: Export) -> None:
        work = self._work.get(export.block)
        if work is None:
            return
        given = self._given.setdefault(export.block, [])
        if export.how == _HOLDING:
            given.append(export)
            if any(self._host.known[thread] < epoch for thread, epoch in work.items()):
                self._tell(export)
        elif export.how == _RELEASED and given:
            given.pop()

    def _tell(self, export: Export) -> None:
        key = (export.how, self._stacks.get(export.stack, ()))
        self.told[key] = self.told.get(key, 0) + 1


class Exports:
    """Feed it all ranks' records, each rank's in order."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        self._ranks.setdefault(rank, _Rank()).feed(records)

    def unseen(self) -> list[str]:
        """A sentence, without a full stop, for each place where such an address was taken."""
        keys = {key: None for rank in sorted(self._ranks) for key in self._ranks[rank].told}
        return [
            f"pinned memory was given away by {describe(how, stack)}, and the device has work on it that no wait puts "
            "before that: what the program does through it then is not seen"
            for how, stack in keys
        ]
