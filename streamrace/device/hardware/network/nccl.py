"""Computes the duration of NCCL's collectives: that of the fastest of its algorithms and protocols.

NCCL knows the latency and rate of each algorithm with each protocol on a machine, and chooses for every size the one it
expects to be fastest (``src/graph/tuning.cc``). This model does the same: it takes latencies and the fraction of a rate
that a protocol reaches from NCCL, and the rates of links from ``routes``. Rings serve all collectives, trees
all-reduce. NCCL's rates assume a machine that one collective has to itself; ours account for other traffic on the
links, since more bandwidth could otherwise turn out slower.

Not modelled: NVLS (switches that add up, Hopper), CollNet (SHARP), PAT (2.23 and above, one GPU per node).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.network.routes import Members, PlacedRanks, RoutedGroup
from streamrace.device.hardware.network.topology import Fabric

PROTOCOLS = ("LL", "LL128", "Simple")
_ONE_WAY = ("all_gather", "reduce_scatter")


class Way(NamedTuple):
    """An algorithm with a protocol. ``curve``: fraction of a tree's rate reached, by powers of two from 64 bytes."""

    algorithm: str
    protocol: str
    latency_ns: float
    ns_per_byte: float
    curve: tuple[float, ...] = ()
    plateau_bytes: float = math.inf  # from this size on
    plateau: float = 1.0  # the latency is multiplied by this factor

    def ns(self, nbytes: float) -> float:
        """Return the duration for ``nbytes``."""
        late = self.latency_ns * (self.plateau if nbytes >= self.plateau_bytes else 1.0)
        return late + nbytes * self.ns_per_byte / (_along(self.curve, nbytes) if self.curve else 1.0)


def _along(curve: tuple[float, ...], nbytes: float) -> float:
    """Interpolate ``curve`` linearly: with steps, as in NCCL, a larger message could be faster."""
    at = min(max(math.log2(nbytes / 64), 0.0), len(curve) - 1.0) if nbytes > 0 else 0.0
    low = min(int(at), len(curve) - 2)
    return curve[low] + (curve[low + 1] - curve[low]) * (at - low)


class NcclTimes:
    """Computes the durations of NCCL's collectives on placed ranks."""

    def __init__(self, place: PlacedRanks) -> None:
        self._place = place
        self._ways: dict[tuple[str, Members], list[Way]] = {}
        self._sends: dict[tuple[Members, Members], float] = {}

    def ns(self, kind: str, nbytes: float, members: Members) -> float:
        """Return the duration of a collective (``all_gather``), not of a send; ``nbytes``: of the whole tensor."""
        return min(way.ns(nbytes) for way in self.ways(kind, members))

    def chosen(self, kind: str, nbytes: float, members: Members) -> Way:
        """Return the way that NCCL chooses."""
        return min(self.ways(kind, members), key=lambda way: way.ns(nbytes))

    def send_ns_per_byte(self, pair: Members, origin: Members) -> float:
        """Return the time per byte of a message between two ranks, while a ring over ``origin`` sends likewise."""
        cost = self._sends.get((pair, origin))
        if cost is None:
            cost = self._sends[pair, origin] = 1 / self._place.send(pair, origin)
        return cost

    def ways(self, kind: str, members: Members) -> list[Way]:
        """Return all ways among which NCCL could choose."""
        ways = self._ways.get((kind, members))
        if ways is None:
            ways = self._ways[kind, members] = _ways(self._place.fabric, kind, self._place.group(members))
        return ways


def _ways(fabric: Fabric, kind: str, group: RoutedGroup) -> list[Way]:
    protocols = [protocol for protocol in PROTOCOLS if protocol != "LL128" or _has_ll128(fabric)]
    if kind in ("all_to_all", "gather", "scatter"):
        rate = group.all_to_all() if kind == "all_to_all" else group.to_one()
        return [_messages(fabric, group, rate)]
    ways = [_ring(fabric, kind, protocol, group) for protocol in protocols]
    if kind == "all_reduce":
        ways += [_tree(fabric, protocol, group) for protocol in protocols]
    return ways


def _has_ll128(fabric: Fabric) -> bool:
    """Check whether NCCL relies on 128 bytes arriving together: over NVLink, and from a card next to the GPU."""
    return fabric.network.within == "nvlink" and fabric.network.wire != "tcp"


def _messages(fabric: Fabric, group: RoutedGroup, rate: float) -> Way:
    at = PROTOCOLS.index("Simple")
    hop = _hop(fabric, "ring", at) if group.nodes == 1 else _between(fabric, "ring", at)
    return Way("p2p", "Simple", (fact("network.nccl.base_latency.ring")[at] + hop) * 1000, 1 / rate)


def _ring(fabric: Fabric, kind: str, protocol: str, group: RoutedGroup) -> Way:
    at, n, nodes, network = PROTOCOLS.index(protocol), group.ranks, group.nodes, fabric.network
    rate = group.ring()
    if protocol == "LL":
        rate = min(_ll_most(fabric, nodes), rate * fact("network.nccl.ll_part.ring"))
    if protocol == "LL128":
        most = _channels(fabric, group) * fact(f"network.nccl.channel_ring_ll128.{network.generation}")[_row(nodes)]
        rate = min(rate * fact("network.nccl.ll128_part.ring"), most)
    turns = 2 if kind == "all_reduce" else 1
    steps = turns * (n - 1) if turns == 2 or kind in _ONE_WAY else n
    late = fact("network.nccl.base_latency.ring")[at]
    within, between = _hop(fabric, "ring", at), _between(fabric, "tree" if n == nodes else "ring", at)
    if turns == 2 or kind in _ONE_WAY:
        if nodes > 1:
            posted = fact(f"network.nccl.net_overhead.{network.cpu}") * (3 if protocol == "Simple" else 1)
            within = max(within, posted)
        crossing = turns * (nodes - 1)
        late += (steps - crossing) * within + crossing * between
    else:  # the root's data travels around the ring in pieces
        late += within if nodes == 1 else steps * between if group.cards > 1 else between
    way = Way("ring", protocol, late * 1000, steps / n / rate)
    if protocol != "Simple" or nodes == 1 or kind != "all_reduce":
        return way
    plateau = fact(f"network.nccl.ring_plateau.{'volta' if network.generation == 'volta' else 'later'}")
    start = fact("network.nccl.ring_plateau.bytes") * _channels(fabric, group) * n
    return way._replace(plateau_bytes=start, plateau=plateau)


def _tree(fabric: Fabric, protocol: str, group: RoutedGroup) -> Way:
    at, nodes, generation = PROTOCOLS.index(protocol), group.nodes, fabric.network.generation
    channels, row = _channels(fabric, group), _row(nodes)
    bus = 2 * group.tree()  # NCCL's rates of an all-reduce count each byte twice
    bus = min(bus * fact("network.nccl.tree_part"), channels * fact(f"network.nccl.channel_tree.{generation}")[row])
    if protocol == "LL":
        bus = min(bus * fact("network.nccl.ll_part.tree"), _ll_most(fabric, nodes))
    if protocol == "LL128":
        part = fact(f"network.nccl.ll128_part.tree_{'in_node' if nodes == 1 else 'between'}")
        bus = min(bus * part, channels * fact(f"network.nccl.channel_tree_ll128.{generation}")[row])
    late = fact("network.nccl.base_latency.tree")[at]
    up = (group.ranks // nodes - 1) * _hop(fabric, "tree", at) + int(math.log2(nodes)) * _between(fabric, "tree", at)
    curve = (*fact(f"network.nccl.tree_correction.{protocol.lower()}")[:-1], 1.0)  # no correction above 512 MiB
    return Way("tree", protocol, (late + 2 * up) * 1000, 2 / bus, curve)


def _hop(fabric: Fabric, algorithm: str, at: int) -> float:
    """Return the microseconds from a GPU to another one on its node."""
    return float(fact(f"network.nccl.hop.{fabric.network.within}.{algorithm}")[at])


def _between(fabric: Fabric, algorithm: str, at: int) -> float:
    """Return the microseconds from node to node; Simple flushes arriving data, a second pass over the same path."""
    added = fabric.added_ns / 1000 * (2 if PROTOCOLS[at] == "Simple" else 1)
    return float(fact(f"network.nccl.hop.net.{algorithm}")[at]) + added


def _row(nodes: int) -> int:
    return min(nodes, 3) - 1


def _ll_most(fabric: Fabric, nodes: int) -> float:
    """Return the highest rate of LL. Between nodes the CPU polls, so the row depends on the CPU's maker."""
    of = fabric.network.generation if nodes == 1 else "ampere" if fabric.network.cpu == "amd" else "volta"
    return float(fact(f"network.nccl.ll_most.{of}")[_row(nodes)])


@cache
def _links(gpu: float, generation: str) -> int:
    return max(1, round(gpu / float(fact(f"network.nvlink.link_reached.{generation}"))))


def _channels(fabric: Fabric, group: RoutedGroup) -> int:
    """Return the number of rings NCCL finds: one per card, two if fast; on a node one per NVLink, or one over PCIe."""
    if group.nodes > 1:
        return group.cards * (2 if fabric.card >= fact("network.nccl.channel_doubled_from") else 1)
    return _links(fabric.gpu, fabric.network.generation) if fabric.network.within == "nvlink" else 1
