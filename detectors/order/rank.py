"""One rank: its host, streams, markers and blocks, and the races among them.

Blocks belong to one rank, so both sides of a race do too. Other ranks matter for order only, and
that comes in through collectives (:mod:`detectors.order.rendezvous`).

The rules of order are those of torch's CSAN (``_sanitizer.py``), in the words of
:mod:`simgpu.trace`: launch is host to stream, record and wait are stream to stream, a host wait is
stream to host. The detector adds no order of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detectors.order.access_history import Block, Entry
from detectors.order.clocks import Snapshot, Stream, Threads, Vector
from detectors.order.labels import Labels
from detectors.order.races import AccessKind, Moment, Occurrence, Side
from detectors.order.rendezvous import Arrival, Meetings
from detectors.order.reuse import Freed, Inheritance
from detectors.order.tally import Tallies
from simgpu.trace import (
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
    StreamName,
    TraceError,
    TraceRecord,
    Wait,
)

PROBES = "detectors::"  # the kernels of detectors.live.ops

Bytes = tuple[int, int, int, Any]
"""An :class:`simgpu.trace.Access`, or the plain tuple of the same fields that a reader gives."""


class Rank:
    """Follows one rank's records. :meth:`run` stops at collectives, as these need the other members."""

    def __init__(self, rank: int, threads: Threads, meetings: Meetings, tallies: Tallies) -> None:
        self.rank = rank
        self._threads = threads
        self._meetings = meetings
        self._tallies = tallies
        self._host = threads.host()
        self._streams: dict[int, Stream] = {}
        self._names: dict[int, str] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._markers: dict[int, tuple[Snapshot, int]] = {}  # and when, in this timing, the marker is passed
        self._highest_marker = -1
        self._blocks: dict[int, Block] = {}
        self._freed = Freed()
        self._raced: dict[int, Block] = {}  # the blocks whose races wait for labels
        self._phase = Phase(0, 0, "init")
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Launch: self._launch,
            Record: self._record,
            Wait: self._wait,
            HostWait: self._host_wait,
            Alloc: self._alloc,
            Free: self._free,
            RecordStream: self._record_stream,
            Reuse: self._reuse,
            Label: self._label,
            Phase: self._enter_phase,
            Stack: self._stack,
            StreamName: self._stream_name,
            Group: self._group,
            Begin: self._begin,
        }

    @property
    def live_state(self) -> int:
        """How many blocks and markers are remembered. Bounded by what is alive in the traced run."""
        return len(self._blocks) + len(self._freed) + len(self._raced) + len(self._markers)

    @property
    def raced(self) -> list[Block]:
        """The live blocks with races."""
        return list(self._raced.values())

    def run(self, records: Iterator[TraceRecord]) -> Collective | None:
        """Follow the records up to the next collective; None when all are done."""
        handlers = self._handlers
        for record in records:
            if type(record) is Collective:
                return record
            handle = handlers.get(type(record))
            if handle is not None:  # the rest orders nothing
                handle(record)
        return None

    # -- work ---------------------------------------------------------------------------------

    def _launch(self, record: Launch) -> None:
        stream = self._streams.get(record.stream)
        if stream is None or stream.host_version != self._host.version:
            stream = self._on(record.stream)
        stream.epoch += 1
        stream.done = record.end
        if record.kernel.startswith(PROBES):
            return  # a detector's own look reads what it looks at: if that races, the program's own read does too
        for access in record.reads:
            self._read(access, stream, record)
        for access in record.writes:
            self._write(access, stream, record)

    def begin_collective(self, record: Collective) -> Arrival:
        """Read the inputs, in an epoch that the other members will learn of."""
        stream = self._on(record.stream)
        stream.epoch += 1
        for access in record.reads:
            self._read(access, stream, record)
        return Arrival(record, stream.position())

    def end_collective(self, record: Collective, known: Vector) -> None:
        """Write the outputs, knowing what the members brought, in an epoch that they do not learn of."""
        stream = self._streams[record.stream]
        stream.learn(known)
        stream.done = record.end
        for access in record.writes:
            self._write(access, stream, record)

    def _read(self, access: Bytes, stream: Stream, record: Launch | Collective) -> None:
        number, lo, hi, layout = access
        if lo >= hi:
            return
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block()
        entry = (lo, hi, layout, stream.thread, stream.epoch, record, self._phase)
        if block.inherited is not None:
            self._meet_former(number, block, block.inherited, entry, stream, "read")
        writes = block.read(entry, stream.known)
        if writes:
            self._report(number, block, writes, "write", entry, "read")

    def _write(self, access: Bytes, stream: Stream, record: Launch | Collective) -> None:
        number, lo, hi, layout = access
        if lo >= hi:
            return
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block()
        entry = (lo, hi, layout, stream.thread, stream.epoch, record, self._phase)
        if block.inherited is not None:
            self._meet_former(number, block, block.inherited, entry, stream, "write")
        found = block.write(entry, stream.known)
        if found:
            self._report(number, block, found[0], "read", entry, "write")
            self._report(number, block, found[1], "write", entry, "write")

    def _meet_former(
        self, number: int, block: Block, inherited: Inheritance, entry: Entry, stream: Stream, access: AccessKind
    ) -> None:
        """The new owner of memory that was freed touches it: is it ordered after what the former owners did?"""
        reads, writes = inherited.met(entry, stream.known, write=access == "write")
        if reads or writes:
            got = self._stacks.get(inherited.stack, ())
            self._report(number, block, reads, "read", entry, access, got)
            self._report(number, block, writes, "write", entry, access, got)
        if not inherited:
            block.inherited = None

    # -- order --------------------------------------------------------------------------------

    def _on(self, number: int) -> Stream:
        """The stream, after what the host knows: everything that is enqueued goes through here."""
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = self._threads.stream(number)
        stream.enqueue(self._host)
        return stream

    def _record(self, record: Record) -> None:
        stream = self._on(record.stream)
        position, marker = stream.position(), record.marker
        self._highest_marker = max(self._highest_marker, marker)
        if self._host.known[position.thread] < position.epoch:  # else waiting for it never orders anything
            self._markers[marker] = (position, stream.done)
            stream.unforgotten.append((position.epoch, marker))

    def _position(self, marker: int) -> tuple[Snapshot, int] | None:
        """The marker's position, or None where all later work comes after it anyway."""
        position = self._markers.get(marker)
        if position is None and marker > self._highest_marker:
            raise TraceError(f"rank {self.rank} waits for marker {marker}, which no record has made")
        return position

    def _wait(self, record: Wait) -> None:
        position = self._position(record.marker)
        if position is not None:
            stream = self._on(record.stream)
            stream.wait(position[0])
            if position[1] > stream.done:
                stream.done = position[1]

    def _host_wait(self, record: HostWait) -> None:
        position = self._position(record.marker)
        if position is None or not self._host.wait(position[0]):
            return
        # What the host has waited for comes before all work that is still to be launched, also on streams
        # that do not exist yet: such markers can be forgotten. This bounds the memory for markers.
        known, markers = self._host.known, self._markers
        for stream in self._streams.values():
            unforgotten, epoch = stream.unforgotten, known[stream.thread]
            while unforgotten and unforgotten[0][0] <= epoch:
                markers.pop(unforgotten.popleft()[1], None)

    # -- memory -------------------------------------------------------------------------------

    def _block(self, number: int) -> Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block()
        return block

    def _alloc(self, record: Alloc) -> None:
        self._block(record.block).owner = record.stream

    def _record_stream(self, record: RecordStream) -> None:
        block = self._block(record.block)
        if record.stream not in block.recorded:
            block.recorded += (record.stream,)

    def _label(self, record: Label) -> None:
        block = self._block(record.block)
        if block.labels is None:
            block.labels = Labels()
        block.labels.add(record)

    def _free(self, record: Free) -> None:
        """The memory may be handed out again, in the order of its owner and after the recorded streams.

        A quiet one touches nothing: who gets the memory is told (:meth:`_reuse`). Of others no more is known.

        As torch's caching allocator does it: blocks are reused on the stream they were allocated on
        without any wait, and ``record_stream`` makes the reuse wait for an event recorded at the free.
        The next owner may do anything, so this counts as a write of all of it. It only looks at the
        positions of these streams: the owner does not come to know of the recorded ones. Where the
        allocation was not seen the owner is unknown, and nothing is checked.
        """
        block = self._blocks.pop(record.block, None)
        if block is None:
            return
        if record.quiet:
            self._freed.add(record.block, block, [self._on(number).position() for number in block.recorded])
        elif block.owner is not None and (block.reads.everything() or block.writes.everything()):
            self._check_free(record, block, block.owner)
        if block.pending is not None:
            del self._raced[record.block]
            for tally, lo, hi in block.pending:
                if block.labels is not None:
                    tally.names |= block.labels.of(lo, hi)

    def _reuse(self, record: Reuse) -> None:
        self._freed.hand_out(record, self._blocks.get(record.block), self._host)

    def _check_free(self, record: Free, block: Block, owner: int) -> None:
        mine = self._on(owner)
        allowed = [mine, *[self._on(number) for number in block.recorded]] if block.recorded else [mine]
        effect = max(record.time, *[stream.done for stream in allowed])
        sides: tuple[tuple[list[Entry], AccessKind], ...] = (
            (block.reads.everything(), "read"),
            (block.writes.everything(), "write"),
        )
        for entries, access in sides:
            for old in entries:
                thread, epoch = old[3], old[4]
                for stream in allowed:
                    if stream.thread == thread or stream.known[thread] >= epoch:
                        break
                else:
                    free = Side("free", "free", self._name(owner))
                    moment = Moment(None, *self._phase, record.time, record.time)
                    self._count(record.block, block, old, access, free, moment, effect, old[0], old[1])

    # -- names --------------------------------------------------------------------------------

    def _enter_phase(self, record: Phase) -> None:
        self._phase = record

    def _stack(self, record: Stack) -> None:
        self._stacks[record.id] = record.frames

    def _stream_name(self, record: StreamName) -> None:
        self._names[record.stream] = record.name

    def _name(self, stream: int) -> str:
        return self._names.get(stream, f"stream {stream}")

    def _group(self, record: Group) -> None:
        self._meetings.declare(record.group, record.ranks)

    def _begin(self, record: Begin) -> None:
        if record.rank != self.rank:
            raise TraceError(f"the trace given for rank {self.rank} is that of rank {record.rank}")
        if record.info.get("mirrored"):
            self._meetings.mirror(self.rank)

    # -- reports ------------------------------------------------------------------------------

    def _report(
        self,
        number: int,
        block: Block,
        olds: list[Entry],
        before: AccessKind,
        entry: Entry,
        after: AccessKind,
        got: tuple[Frame, ...] | None = None,
    ) -> None:
        """``got``: where the block was allocated, if ``olds`` are of former owners of its memory."""
        side, moment, effect = self._side(entry, after, got), _moment(entry), _effect(entry, after)
        for old in olds:
            lo, hi = max(old[0], entry[0]), min(old[1], entry[1])
            self._count(number, block, old, before, side, moment, effect, lo, hi)

    def _count(
        self,
        number: int,
        block: Block,
        old: Entry,
        access: AccessKind,
        second: Side,
        moment: Moment,
        effect: int,
        lo: int,
        hi: int,
    ) -> None:
        slack = effect - _effect(old, access)
        occurrence = Occurrence(self.rank, number, lo, hi, _moment(old), moment, slack < 0, slack)
        tally = self._tallies.add(self._side(old, access), second, occurrence)
        if block.pending is None:
            block.pending = set()
            self._raced[number] = block
        block.pending.add((tally, lo, hi))

    def _side(self, entry: Entry, access: AccessKind, allocated: tuple[Frame, ...] | None = None) -> Side:
        operation = entry[5]
        issuer = self._name(operation.issuer) if type(operation) is Collective and operation.issuer >= 0 else ""
        frames = self._stacks.get(operation.stack, ())
        return Side(operation.kernel, access, self._name(operation.stream), issuer, frames, allocated)


def _moment(entry: Entry) -> Moment:
    operation, phase = entry[5], entry[6]
    return Moment(operation.op, *phase, operation.start, operation.end)


def _effect(entry: Entry, access: AccessKind) -> int:
    """The virtual time at which an access touches memory."""
    operation = entry[5]
    return operation.start if access == "read" and type(operation) is Collective else operation.end
