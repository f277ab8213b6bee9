"""Follows one rank: its blocks, and the races among the accesses to them.

Blocks belong to one rank, so both sides of a race do too. Other ranks matter for order only, and
that order comes in through collectives (:mod:`streamrace.detectors.order.rendezvous`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from streamrace.detectors.order.access_history import Entry
from streamrace.detectors.order.block import Block
from streamrace.detectors.order.clocks import StreamClock, Threads, Vector
from streamrace.detectors.order.labels import HasNames, Labels
from streamrace.detectors.order.races import AccessKind, Moment, Occurrence, Side
from streamrace.detectors.order.rendezvous import Arrival, OpenCollectives
from streamrace.detectors.order.reuse import Found, Freed, Inheritance
from streamrace.detectors.order.streams import StreamOrder
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
    StreamName,
    TraceError,
    TraceRecord,
    Wait,
)

PROBES = "detectors::"  # the kernels of streamrace.detectors.live.ops

Report: TypeAlias = Callable[[Side, Side, Occurrence], HasNames]
"""Takes the two sides of an occurrence, the one issued first before the other; returns the race it belongs to."""

Bytes = tuple[int, int, int, Any]
"""A :class:`streamrace.trace.records.Access`, or the plain tuple of the same fields that a reader yields."""

_Second = tuple[Side, Moment, int]  # of a race: its side, its moment, and the time at which it touches memory
_KINDS: tuple[AccessKind, AccessKind] = ("read", "write")


class RankAccesses:
    """Follows one rank's records. :meth:`run` stops at collectives, as these need the other members."""

    def __init__(self, rank: int, threads: Threads, collectives: OpenCollectives, report: Report) -> None:
        self.rank = rank
        self._collectives = collectives
        self._report = report
        self._order = order = StreamOrder(rank, threads)
        self._host, self._streams = order.host, order.streams
        self._names: dict[int, str] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._blocks: dict[int, Block] = {}
        self._freed = Freed()
        self._raced: dict[int, Block] = {}  # the live blocks with races
        self._phase = Phase(0, 0, "init")
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Launch: self._launch,
            Record: order.record,
            Wait: order.wait,
            HostWait: order.host_wait,
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
        """Return how many blocks and markers are kept. Bounded by what is alive in the traced run."""
        return len(self._blocks) + len(self._freed) + len(self._raced) + len(self._order.markers)

    def settle(self) -> None:
        """Name the bytes of the races in blocks that are still live."""
        for block in self._raced.values():
            block.settle()

    def run(self, records: Iterator[TraceRecord]) -> Collective | None:
        """Follow the records up to the next collective; return None after the last record."""
        handlers = self._handlers
        for record in records:
            if type(record) is Collective:
                return record
            handle = handlers.get(type(record))
            if handle is not None:  # other records order nothing
                handle(record)
        return None

    # -- work ---------------------------------------------------------------------------------

    def _launch(self, record: Launch) -> None:
        stream = self._streams.get(record.stream)
        if stream is None or stream.host_version != self._host.version:
            stream = self._order.on(record.stream)
        stream.epoch += 1
        stream.done = record.end
        if record.kernel.startswith(PROBES):
            return  # a probe of the watch: if it races, so does the program's own use of what it reads
        for access in record.reads:
            self._access(access, stream, record, "read")
        for access in record.writes:
            self._access(access, stream, record, "write")

    def begin_collective(self, record: Collective) -> Arrival:
        """Read the inputs, in an epoch that the other members will learn of."""
        stream = self._order.on(record.stream)
        stream.epoch += 1
        for access in record.reads:
            self._access(access, stream, record, "read")
        return Arrival(record, stream.position())

    def end_collective(self, record: Collective, known: Vector) -> None:
        """Write the outputs, knowing what the members brought, in an epoch that the other members do not learn of."""
        stream = self._streams[record.stream]
        stream.learn(known)
        stream.done = record.end
        for access in record.writes:
            self._access(access, stream, record, "write")

    def _access(self, access: Bytes, stream: StreamClock, record: Launch | Collective, kind: AccessKind) -> None:
        number, lo, hi, layout = access
        if lo >= hi:
            return
        block = self._blocks.get(number) or self._block(number)
        entry = (lo, hi, layout, stream.thread, stream.epoch, record, self._phase)
        if block.inherited is not None:
            self._check_former(block, block.inherited, entry, stream, kind)
        racing = (block.write if kind == "write" else block.read)(entry, stream.known)
        if racing is not None:
            self._compare(block, racing, entry, kind)

    def _check_former(
        self, block: Block, inherited: Inheritance, entry: Entry, stream: StreamClock, kind: AccessKind
    ) -> None:
        """Report accesses of former owners that race with an access by the new owner of reused memory."""
        racing = inherited.met(entry, stream.known, write=kind == "write")
        if any(racing):
            self._compare(block, racing, entry, kind, self._stacks.get(inherited.stack, ()))
        if not inherited:
            block.inherited = None

    # -- memory -------------------------------------------------------------------------------

    def _block(self, number: int) -> Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block(number)
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
        """Make the memory available again, in the order of its owner and after the recorded streams.

        A quiet free touches nothing: a later record names the new owner of the memory (:meth:`_reuse`).

        For other frees the next owner is unknown. As in torch's caching allocator, blocks are reused on the stream they
        were allocated on without any wait, and ``record_stream`` makes the reuse wait for an event of the free.
        The next owner may do anything, so the free counts as a write of the whole block. Only the positions of these
        streams are used: the owner does not come to know of the recorded streams. If the allocation was not traced, the
        owner is unknown, and nothing is checked.
        """
        block = self._blocks.pop(record.block, None)
        if block is None:
            return
        if record.quiet:
            accesses = (block,) if block.inherited is None else (block, block.inherited)
            self._freed.add(record.block, accesses, [self._order.on(number).position() for number in block.recorded])
        elif block.owner is not None and (block.reads.everything() or block.writes.everything()):
            self._check_free(record, block, block.owner)
        if block.raced is not None:
            del self._raced[record.block]
            block.settle()

    def _reuse(self, record: Reuse) -> None:
        block = self._blocks.get(record.block)
        inherited = self._freed.hand_out(record, block.inherited if block else None, self._host)
        if block is not None:
            block.inherited = inherited

    def _check_free(self, record: Free, block: Block, owner: int) -> None:
        allowed = [self._order.on(number) for number in (owner, *block.recorded)]
        effect = max(record.time, *[stream.done for stream in allowed])
        for entries, access in zip((block.reads.everything(), block.writes.everything()), _KINDS, strict=True):
            for entry in entries:
                thread, epoch = entry[3], entry[4]
                for stream in allowed:
                    if stream.thread == thread or stream.known[thread] >= epoch:
                        break
                else:
                    free = Side("free", "free", self._name(owner))
                    moment = Moment(None, *self._phase, record.time, record.time)
                    self._count(block, entry, access, (free, moment, effect), entry[0], entry[1])

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
        self._collectives.declare(record.group, record.ranks)

    def _begin(self, record: Begin) -> None:
        if record.rank != self.rank:
            raise TraceError(f"the trace given for rank {self.rank} is that of rank {record.rank}")
        if record.info.get("mirrored"):
            self._collectives.mirror(self.rank, record.info.get("running", ()))

    # -- reports ------------------------------------------------------------------------------

    def _compare(
        self, block: Block, racing: Found, entry: Entry, kind: AccessKind, allocated: tuple[Frame, ...] | None = None
    ) -> None:
        """Report the races in ``racing``. ``allocated``: the block's allocation, for races with former owners."""
        second = self._side(entry, kind, allocated), _moment(entry), _effect(entry, kind)
        for formers, former_kind in zip(racing, _KINDS, strict=True):
            for former in formers:
                self._count(block, former, former_kind, second, max(former[0], entry[0]), min(former[1], entry[1]))

    def _count(self, block: Block, former: Entry, kind: AccessKind, second: _Second, lo: int, hi: int) -> None:
        side, moment, effect = second
        slack = effect - _effect(former, kind)
        occurrence = Occurrence(self.rank, block.number, lo, hi, _moment(former), moment, slack < 0, slack)
        race = self._report(self._side(former, kind), side, occurrence)
        if block.raced is None:
            block.raced = set()
            self._raced[block.number] = block
        block.raced.add((race, lo, hi))

    def _side(self, entry: Entry, access: AccessKind, allocated: tuple[Frame, ...] | None = None) -> Side:
        operation = entry[5]
        issuer = self._name(operation.issuer) if type(operation) is Collective and operation.issuer >= 0 else ""
        frames = self._stacks.get(operation.stack, ())
        return Side(operation.kernel, access, self._name(operation.stream), issuer, frames, allocated)


def _moment(entry: Entry) -> Moment:
    operation, phase = entry[5], entry[6]
    return Moment(operation.op, *phase, operation.start, operation.end)


def _effect(entry: Entry, access: AccessKind) -> int:
    """Return the virtual time at which an access touches memory."""
    operation = entry[5]
    return operation.start if access == "read" and type(operation) is Collective else operation.end
