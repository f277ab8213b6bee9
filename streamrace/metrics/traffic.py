"""Computes how many bytes a GPU sends, within its node and between nodes, by what sends them.

Counted are the bytes that an algorithm optimal in bandwidth sends, per GPU, for V bytes (``Collective.nominal``, the
whole that is exchanged) over n ranks (Patarasuk & Yuan 2009 for the ring):

* all-gather and reduce-scatter: (n-1)/n V; all-reduce, which is both: 2 (n-1)/n V,
* broadcast and reduce: (n-1)/n V, the mean over ranks (in a chain all but one send V),
* all-to-all, V being the rank's own whole buffer in equal parts: (n-1)/n V,
* gather and scatter: (n-1)/n V/n, the mean over ranks (to a root all but one send their part),
* send: V; receive: nothing.

**Within and between.** The bytes of a ring count wholly as *between* nodes if its group has ranks on more than one
node (all of it waits for the slowest link), and as *within* if it lies in one node. The other kinds go straight
to their receivers: the part for ranks of other nodes is between, the rest within. ``between_ring``: the rings' share.

**Crossing** is what really leaves the node, per GPU: of a ring over k nodes only k of its n links do. ZeRO++ (Wang et
al. 2023, arXiv 2306.10209, section 3) counts the volume across nodes so, for a node's GPUs together: crossing times
GPUs per node is M for an all-gather of M bytes over all ranks (exactly (n-1)/n M), 3 M for a step of ZeRO-3, and M/4
for qgZ's two hops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from streamrace.trace import wording
from streamrace.trace.records import Begin, Collective, Group, Phase, TraceError, TraceRecord

# Bytes that each of n ranks sends, as a fraction of V: numerator, denominator.
_RING: dict[str, Callable[[int], tuple[int, int]]] = {
    "all_gather": lambda n: (n - 1, n),
    "reduce_scatter": lambda n: (n - 1, n),
    "all_reduce": lambda n: (2 * (n - 1), n),
    "broadcast": lambda n: (n - 1, n),
    "reduce": lambda n: (n - 1, n),
    "send": lambda n: (1, 1),
    "recv": lambda n: (0, 1),
}
# Bytes sent to one other rank, as a fraction of V: its denominator.
_STRAIGHT: dict[str, Callable[[int], int]] = {
    "all_to_all": lambda n: n,
    "gather": lambda n: n * n,
    "scatter": lambda n: n * n,
}

_SUMS = ("within", "between", "between_ring", "crossing")


class _Key(NamedTuple):
    step: int
    phase: str
    kernel: str
    members: int
    nodes: int
    local: int


@dataclass(frozen=True)
class Flow:
    """The bytes that collectives of one kind, over groups of ``members`` ranks on ``nodes`` nodes, send in a phase.

    ``count`` collectives exchanged ``nominal`` bytes; ``within``, ``between`` and ``crossing`` are sent, rounded down.
    """

    step: int
    phase: str
    kernel: str
    members: int
    nodes: int
    count: int
    nominal: int
    within: int
    between: int
    crossing: int


@dataclass(frozen=True)
class Traffic:
    """All flows, by step and then as they came. ``unknown``: collectives left out, of unknown kind or bytes."""

    flows: tuple[Flow, ...]
    unknown: int

    @property
    def within(self) -> int:
        return sum(flow.within for flow in self.flows)

    @property
    def between(self) -> int:
        return sum(flow.between for flow in self.flows)

    @property
    def between_ring(self) -> int:
        """Return the bytes that are ``between`` because a group spans nodes, not because a receiver is elsewhere."""
        return sum(flow.between for flow in self.flows if flow.kernel in _RING)

    @property
    def crossing(self) -> int:
        return sum(flow.crossing for flow in self.flows)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(flow.step for flow in self.flows))

    def only(
        self,
        *,
        step: int | None = None,
        phase: str | None = None,
        kernel: str | None = None,
        members: int | None = None,
    ) -> Traffic:
        """Return the flows of this step, phase, kernel and size of group."""
        filters = {"step": step, "phase": phase, "kernel": kernel, "members": members}
        return Traffic(
            tuple(
                flow
                for flow in self.flows
                if all(value is None or getattr(flow, name) == value for name, value in filters.items())
            ),
            self.unknown,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, with the sums of each step."""
        steps = {step: self.only(step=step) for step in self.steps}
        return {
            "flows": [asdict(flow) for flow in self.flows],
            "steps": [{"step": step, **{name: getattr(sums, name) for name in _SUMS}} for step, sums in steps.items()],
            "unknown": self.unknown,
        }


class TrafficMetrics:
    """Computes :class:`Traffic` from one rank's records, in order. ``nodes_of[rank]``: each rank's node."""

    def __init__(self, nodes_of: Sequence[int]) -> None:
        self._nodes_of = nodes_of
        self._rank = 0
        self._step, self._phase = 0, "init"
        self._shapes: dict[int, tuple[int, int, int]] = {}  # by group: ranks, nodes, ranks on this rank's node
        self._sums: dict[_Key, list[int]] = {}  # count and nominal bytes
        self._open: dict[tuple[int, str], list[int]] = {}  # the sums of this phase, by group and kernel
        self._unknown = 0

    def feed(self, records: Iterable[TraceRecord]) -> None:
        """Take the next records. Raises :class:`TraceError` for a group of unknown ranks."""
        for record in records:
            kind = type(record)
            if kind is Collective:
                self._collective(record)  # type: ignore[arg-type]
            elif kind is Phase:
                assert isinstance(record, Phase)
                self._step, self._phase = record.step, record.name
                self._open = {}
            elif kind is Group:
                assert isinstance(record, Group)
                self._group(record)
            elif kind is Begin:
                assert isinstance(record, Begin)
                self._rank = record.rank

    def _collective(self, record: Collective) -> None:
        if record.nominal < 0:
            self._unknown += 1
            return
        sums = self._open.get((record.group, record.kernel))
        if sums is None:
            kernel = wording.operator(record.kernel)
            if kernel not in _RING and kernel not in _STRAIGHT:
                self._unknown += 1
                return
            if record.group not in self._shapes:
                raise TraceError(
                    f"op {record.op} ({record.kernel}): no record says which ranks group {record.group} has"
                )
            members, nodes, local = self._shapes[record.group]
            key = _Key(self._step, self._phase, kernel, members, nodes, local if kernel in _STRAIGHT else 0)
            sums = self._open[record.group, record.kernel] = self._sums.setdefault(key, [0, 0])
        sums[0] += 1
        sums[1] += record.nominal

    def _group(self, record: Group) -> None:
        if max(record.ranks) >= len(self._nodes_of):
            raise TraceError(f"group {record.group} has rank {max(record.ranks)}: its node is not known")
        nodes = [self._nodes_of[rank] for rank in record.ranks]
        self._shapes[record.group] = (len(nodes), len(set(nodes)), nodes.count(self._nodes_of[self._rank]))

    def result(self) -> Traffic:
        """Return the traffic so far."""
        flows = []
        for key, (count, nominal) in self._sums.items():
            step, phase, kernel, members, nodes, local = key
            if kernel in _STRAIGHT:
                part = _STRAIGHT[kernel](members)
                within, between = (local - 1) * nominal // part, (members - local) * nominal // part
                crossing = between
            else:
                numerator, denominator = _RING[kernel](members)
                sent = numerator * nominal // denominator
                within, between = (sent, 0) if nodes == 1 else (0, sent)
                crossing = between * nodes // members
            flows.append(Flow(step, phase, kernel, members, nodes, count, nominal, within, between, crossing))
        return Traffic(tuple(sorted(flows, key=lambda flow: flow.step)), self._unknown)
