"""Follows one rank's host through its records, and adds the dependencies of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamrace.replay.faults import ReplayError
from streamrace.replay.placement import Holds
from streamrace.trace.records import (
    HOST_STREAM,
    NOTHING,
    WROTE,
    Alloc,
    Begin,
    Call,
    Collective,
    Free,
    Group,
    HostStep,
    HostWait,
    Launch,
    Phase,
    Probe,
    Record,
    Reuse,
    StreamName,
    TraceRecord,
    Wait,
)

HOST = -1
"""Stands for the host in place of a stream's number."""


class Effect(NamedTuple):
    """An action on memory, at the time of ``node``.

    ``what``: kernel, read (the host runs an operator), arrive (a collective takes its inputs), leave (a collective
    writes its outputs), probe, host (the host reads or writes pinned memory), back (a block that other streams used may
    be handed out), inherit and inherited (a new block begins with the content of others, if the block has memory of its
    own). ``item``: the op, the block or the probe. ``seq``: index among the rank's records. ``stream``: the stream that
    executes the effect, or :data:`HOST`.
    """

    rank: int
    seq: int
    node: int
    what: str
    item: int
    stream: int


class Costed(NamedTuple):
    """An operation whose cost the clock computes.

    ``node`` takes the duration, ``late`` the delay of the start (the same node, except for collectives). ``nominal``:
    of a kernel its unstretched nanoseconds, of a collective bytes (on the simulated GPU nanoseconds too); a kernel has
    no ``members``.
    """

    node: int
    late: int
    rank: int
    op: int
    kernel: str
    stream: str
    nominal: float
    members: tuple[int, ...] = ()
    stream_name: str = ""
    nbytes: int = 0
    group: int = 0
    number: int = 0
    origin: tuple[int, ...] = ()


class HostAction(NamedTuple):
    """A step of a rank's host that takes its time at ``node``, ``times`` over."""

    node: int
    rank: int
    kind: str
    times: int = 1


@dataclass
class HostNodes:
    """The nodes of all ranks: moments, each with its predecessors.

    A node's time is the latest of ``preds`` plus a cost: of the host's own ``steps``, or of an operation (``costed``).
    ``threads``: by node, its rank and stream. ``expected``: recorded times.
    """

    preds: list[tuple[int, ...]] = field(default_factory=list)
    threads: list[tuple[int, int]] = field(default_factory=list)
    steps: list[HostAction] = field(default_factory=list)
    costed: list[Costed] = field(default_factory=list)
    expected: list[tuple[int, int]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    begins: dict[tuple[int, int], int] = field(default_factory=dict)  # by rank and op; of a kernel: its end
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    launches: dict[tuple[int, int], int] = field(default_factory=dict)  # ... the host's node at the launch
    issued: dict[tuple[int, int], int] = field(default_factory=dict)  # ... as Effect.seq
    begun: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)  # by step and rank: seq, host's node
    starts: dict[tuple[int, int], int] = field(default_factory=dict)  # by group and number: where a collective starts
    arrivals: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    asks: list[tuple[int, int]] = field(default_factory=list)  # queries answered False: query node, queried node
    firsts: dict[int, list[int]] = field(default_factory=dict)  # by rank and record: number of the next node before it

    def add(self, rank: int, stream: int, *preds: int) -> int:
        self.preds.append(preds)
        self.threads.append((rank, stream))
        return len(self.preds) - 1


class Host:
    """Reads one rank's records, and adds its nodes and effects."""

    def __init__(self, rank: int, nodes: HostNodes, groups: dict[int, Group]) -> None:
        self._rank = rank
        self._nodes = nodes
        self._groups = groups
        self._now = self._start = nodes.add(rank, HOST)
        self._time = 0  # as recorded
        self._seq = 0
        self._tails: dict[int, int] = {}  # by stream: the node at which all work issued to the stream is done
        self._names: dict[int, str] = {}
        self._markers: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._last: dict[int, int] = {}  # by group: the node at which the group's last collective on this rank ends
        self._calls: dict[int, Call] = {}
        self._heirs: set[int] = set()  # blocks that may begin with the content of others
        self._held: dict[int, set[int]] = {}  # blocks that are handed on when these streams are done with them
        self._has_calls = False  # whether the recording holds calls, not only times
        nodes.steps.append(HostAction(self._start, rank, "begin"))

    def follow(self, records: Sequence[TraceRecord]) -> None:
        """Follow the records. Raises :class:`ReplayError` if the records are inconsistent."""
        if isinstance(records[0], Begin):
            self._time = int(records[0].info.get("began", 0))
            self._has_calls = bool(records[0].info.get("recorded"))
        if self._has_calls:
            holds = Holds(records)
            self._heirs, self._held = holds.heirs, holds.held
        self._calls = {record.op: record for record in records if isinstance(record, Call)}
        handlers: dict[type[Any], Callable[[Any], None]] = {
            Launch: self._launch,
            Collective: self._collective,
            Record: self._record,
            Wait: self._wait,
            HostWait: self._host_wait,
            HostStep: self._host_step,
            Call: self._call,
            Probe: self._probe,
            Alloc: self._alloc,
            Free: self._free,
            Reuse: self._reuse,
            StreamName: self._stream_name,
            Phase: self._phase,
        }
        firsts = self._nodes.firsts.setdefault(self._rank, [])
        for record in records:
            self._seq += 1
            firsts.append(len(self._nodes.preds))
            handle = handlers.get(type(record))
            if handle is not None:
                handle(record)

    # -- the host's clock --------------------------------------------------------------------------

    def _step(self, kind: str, time: int, times: int = 1) -> int:
        """Add a step of the host that takes time."""
        self._time = time
        self._now = self._nodes.add(self._rank, HOST, self._now)
        self._nodes.steps.append(HostAction(self._now, self._rank, kind, times))
        self._nodes.expected.append((self._now, time))
        return self._now

    def _until(self, preds: Iterable[int], time: int) -> None:
        """Add a wait of the host for ``preds``."""
        self._time = time
        self._now = self._nodes.add(self._rank, HOST, self._now, *preds)
        self._nodes.expected.append((self._now, time))

    def _host_wait(self, record: HostWait) -> None:
        if record.began != self._time:
            self._step("ask" if record.how == "query" else "synchronize", record.began)
        self._until([self._marker(record.marker)], record.time)

    def _host_step(self, record: HostStep) -> None:
        if record.how == "met":
            tails = self._tails.values() if record.stream < 0 else [self._tail(record.stream)]
            self._until(tails, record.time)
        elif record.how == "called":
            self._step("call", record.time, record.calls)
        else:
            ask = self._step("ask", record.time)
            if record.marker >= 0:
                self._nodes.asks.append((ask, self._marker(record.marker)))

    def _phase(self, record: Phase) -> None:
        self._nodes.begun.setdefault(record.step, {}).setdefault(self._rank, (self._seq, self._now))

    # -- work ----------------------------------------------------------------------------------------

    def _launch(self, record: Launch) -> None:
        nodes, rank, stream = self._nodes, self._rank, record.stream
        if record.issued == self._time:  # the host's own access to pinned memory takes no time
            end = nodes.add(rank, stream, self._tail(stream), self._now)
        else:
            end = nodes.add(rank, stream, self._tail(stream), self._step("launch", record.issued))
            fields = (rank, record.op, record.kernel, f"{stream}", record.nominal)
            nodes.costed.append(Costed(end, end, *fields, stream_name=self._name(stream)))
        self._took(record, end, end)
        call = self._calls.get(record.op)
        if self._name(stream) == HOST_STREAM:
            self._effect(end, "host", record.op, HOST)
        elif not self._has_calls:
            self._effect(end, "kernel", record.op, stream)
        elif call is None and record.writes:
            raise ReplayError(f"rank {rank}: what operation {record.op} ({record.kernel}) computes was not recorded")
        elif call is not None and not call.host and call.function != NOTHING:
            self._effect(end, "kernel", record.op, stream)

    def _collective(self, record: Collective) -> None:
        nodes, rank, stream, key = self._nodes, self._rank, record.stream, (record.group, record.number)
        group = self._groups.get(record.group)
        if group is None or rank not in group.ranks:
            raise ReplayError(f"rank {rank} joins a collective of group {record.group}, of which it is no member")
        host = self._step("launch", record.issued)
        arrival = self._arrival(record, host)
        if key not in nodes.starts:
            nodes.starts[key] = nodes.add(rank, stream)
        begin = nodes.starts[key]
        nodes.arrivals.setdefault(key, {})[rank] = arrival
        end = nodes.add(rank, stream, begin)
        fields = (rank, record.op, record.kernel, f"{stream}", record.alone)
        nodes.costed.append(Costed(end, arrival, *fields, group.ranks, record.link, record.nominal, *key, group.origin))
        self._took(record, begin, end)
        self._effect(begin, "arrive", record.op, stream)
        self._effect(end, "leave", record.op, stream)

    def _arrival(self, record: Collective, host: int) -> int:
        """Add the node of a member's arrival: a communicator's kernels run in the order of issue, on any stream."""
        before = self._last.get(record.group, self._start)
        return self._nodes.add(self._rank, record.stream, self._tail(record.stream), before, host)

    def _took(self, record: Launch | Collective, begin: int, end: int) -> None:
        nodes, key = self._nodes, (self._rank, record.op)
        nodes.expected += [(end, record.end)] if begin == end else [(begin, record.start), (end, record.end)]
        nodes.begins[key], nodes.ends[key], nodes.issued[key] = begin, end, self._seq
        nodes.launches[key] = self._now
        self._tails[record.stream] = end
        if isinstance(record, Collective):
            self._last[record.group] = end

    def _call(self, record: Call) -> None:
        if record.host and record.function != WROTE:
            self._effect(self._now, "read", record.op, HOST)

    def _probe(self, record: Probe) -> None:
        if record.kind == "read":  # the effect of the host's read takes this checksum
            return
        tails = list(self._tails.values()) if record.stream < 0 else [self._tail(record.stream)]
        self._effect(self._nodes.add(self._rank, HOST, self._now, *tails), "probe", record.probe, HOST)

    def _effect(self, node: int, kind: str, item: int, stream: int) -> None:
        self._nodes.effects.append(Effect(self._rank, self._seq, node, kind, item, stream))

    # -- order ---------------------------------------------------------------------------------------

    def _record(self, record: Record) -> None:
        stream = record.stream
        self._markers[record.marker] = self._nodes.add(self._rank, stream, self._tail(stream), self._now)

    def _wait(self, record: Wait) -> None:
        stream = record.stream
        marker = self._marker(record.marker)
        self._tails[stream] = self._nodes.add(self._rank, stream, self._tail(stream), marker)

    def _tail(self, stream: int) -> int:
        return self._tails.get(stream, self._start)

    def _marker(self, marker: int) -> int:
        if marker not in self._markers:
            raise ReplayError(f"rank {self._rank} waits for marker {marker}, which nothing made: it is damaged")
        return self._markers[marker]

    # -- memory and names ------------------------------------------------------------------------------

    def _alloc(self, record: Alloc) -> None:
        self._owners[record.block] = record.stream

    def _free(self, record: Free) -> None:
        if record.block in self._held:
            tails = [self._tail(stream) for stream in sorted(self._held[record.block])]
            self._effect(self._nodes.add(self._rank, HOST, self._now, *tails), "back", record.block, HOST)

    def _reuse(self, record: Reuse) -> None:
        if record.block in self._heirs:
            self._heirs.remove(record.block)
            owner = self._owners[record.block]
            done = self._nodes.add(self._rank, owner, self._now, self._tail(owner))
            self._effect(self._now, "inherit", record.block, HOST)
            self._effect(done, "inherited", record.block, owner)  # work on the old blocks has ended by now

    def _stream_name(self, record: StreamName) -> None:
        self._names[record.stream] = record.name

    def _name(self, stream: int) -> str:
        return self._names.get(stream, "")


def nodes_of(records: dict[int, Sequence[TraceRecord]], *, mirrored: bool = False) -> HostNodes:
    """Return the nodes of all ranks' hosts. ``mirrored``: one rank stands for all. Raises :class:`ReplayError`."""
    nodes = HostNodes()
    groups = {record.group: record for trace in records.values() for record in trace if isinstance(record, Group)}
    for rank, rank_records in records.items():
        Host(rank, nodes, groups).follow(rank_records)
    for key, arrivals in nodes.arrivals.items():
        missing = sorted(set(groups[key[0]].ranks) - set(arrivals))
        if missing and not mirrored:
            raise ReplayError(f"rank {missing[0]} never joins a collective that others wait in: the run is incomplete")
        nodes.preds[nodes.starts[key]] = tuple(arrivals[rank] for rank in groups[key[0]].ranks if rank in arrivals)
    return nodes
