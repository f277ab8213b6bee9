"""Finds the links that a group's rings, trees and messages use, and the resulting rates.

A group of a training job is seldom alone: the other ranks of its nodes are in groups of the same kind, which
communicate at the same time and share the node's cards. These groups are included: if every eighth rank is in the
group, each of the eight groups has a card, or an eighth of one.

Rings (Patarasuk and Yuan 2009). NCCL lays one ring per network card that is near one of the group's GPUs: it enters and
leaves every node by that card, and passes the group's GPUs of the node in between; each ring carries its part of the
bytes. So a ring over whole nodes uses all cards, a ring over one GPU per node a single card. Trees (Sanders, Speck and
Traeff 2009): two over the nodes, each for half of the bytes, so that a node is an inner node of one and a leaf of the
other, and a chain within each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from streamrace.device.hardware.network.flows import fair
from streamrace.device.hardware.network.topology import Fabric

Members = tuple[int, ...]
Link = tuple[object, ...]
Flow = dict[Link, float]


class NodeShare(NamedTuple):
    """A node's part in a group: the local numbers of the group's GPUs (``gpus``), and the node's number of ranks."""

    node: int
    gpus: Members
    ranks: int


class PlacedRanks:
    """The placement of ranks: ``fabric``, and the node of each rank (``nodes_of``)."""

    def __init__(self, fabric: Fabric, nodes_of: Members) -> None:
        self.fabric, self.nodes_of = fabric, nodes_of
        self._ranks = Counter(nodes_of)
        placed: Counter[int] = Counter()
        self.local: list[int] = []
        for node in nodes_of:
            self.local.append(placed[node])
            placed[node] += 1
        self._groups: dict[Members, RoutedGroup] = {}

    def group(self, members: Members) -> RoutedGroup:
        """Return the group of these ranks, cached."""
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = RoutedGroup(self, members)
        return group

    def shares(self, members: Members) -> list[NodeShare]:
        """Return the nodes of a group, in the order of their first rank in the group."""
        gpus_of: dict[int, list[int]] = {}
        for rank in members:
            gpus_of.setdefault(self.nodes_of[rank], []).append(self.local[rank])
        return [NodeShare(node, tuple(sorted(gpus)), self._ranks[node]) for node, gpus in gpus_of.items()]

    def fair(self, flows: list[Flow]) -> list[float]:
        """Return the GB/s that each flow gets."""
        fabric = self.fabric
        of = {"gpu": fabric.gpu, "bridge": fabric.bridge, "card": fabric.card, "node": fabric.node}
        of["leaf"] = fabric.uplink
        return fair(flows, {link: of[str(link[0])] for flow in flows for link in flow})

    def send(self, pair: Members, origin: Members) -> float:
        """Return the GB/s of a message, one of a ring over ``origin``, while all groups of this kind send as well."""
        nodes = {share.node: share for share in self.shares(origin)}
        start, end = (nodes[self.nodes_of[rank]] for rank in pair)
        at = [share.gpus.index(self.local[rank]) for share, rank in zip((start, end), pair, strict=True)]
        flows = [
            self._message(start, senders[at[0]], end, receivers[at[1]])
            for senders, receivers in zip(beside(start), beside(end), strict=False)
        ]
        return self.fair(flows)[0]

    def _message(self, start: NodeShare, source: int, end: NodeShare, target: int) -> Flow:
        fabric = self.fabric
        pcie: Flow = {("gpu", "out", start.node, source): 1.0, ("gpu", "in", end.node, target): 1.0}
        pcie |= {("bridge", start.node): 1.0, ("bridge", end.node): 1.0}
        if start.node == end.node:
            return pcie
        out, into = fabric.card_of(source, start.ranks), fabric.card_of(target, end.ranks)
        flow: Flow = {("card", "out", start.node, out): 1.0, ("card", "in", end.node, into): 1.0}
        flow |= {("node", "out", start.node): 1.0, ("node", "in", end.node): 1.0}
        up, down = fabric.leaf(start.node, out), fabric.leaf(end.node, into)
        if up != down:
            flow |= {("leaf", "up", up): 1.0, ("leaf", "down", down): 1.0}
        return flow if fabric.network.within == "nvlink" else flow | pcie


def beside(share: NodeShare) -> list[Members]:
    """Return the GPUs of a node by group: first the group that ``share`` belongs to, then all others of its kind."""
    gpus, count = share.gpus, len(share.gpus)
    step = share.ranks // count
    if step * count == share.ranks and all(b - a == step for a, b in pairwise(gpus)):
        first = gpus[0] if count > 1 else 0
        if first < step:
            turns = [gpus, *(tuple(range(at, share.ranks, step)) for at in range(step) if at != gpus[0])]
            return turns
    others = [local for local in range(share.ranks) if local not in set(gpus)]
    return [gpus, *(tuple(others[at : at + count]) for at in range(0, len(others) - count + 1, count))]


class RoutedGroup:
    """The rates of a group of two or more ranks, in GB/s."""

    def __init__(self, place: PlacedRanks, members: Members) -> None:
        self.place, self.ranks = place, len(members)
        self.shares = place.shares(members)
        self.nodes = len(self.shares)
        self.cards = 0 if self.nodes == 1 else min(len(self._cards(share, share.gpus)) for share in self.shares)
        alike: dict[tuple[Members, int], NodeShare] = {}
        for share in self.shares:
            alike.setdefault((share.gpus, share.ranks), share)
        self._kinds = list(alike.values())  # equal nodes limit a ring equally: one of each kind suffices

    def ring(self) -> float:
        """Return the rate of all rings of the group together."""
        return self._together(passes=1.0, turns=1.0)

    def tree(self) -> float:
        """Return the rate of the trees for an all-reduce's bytes, which travel up and down again.

        With two nodes one tree goes up where the other goes down; with more, a node has two children and a parent.
        """
        longest = max(len(share.gpus) for share in self.shares)
        return self._together(passes=1.0 if self.nodes == 2 else 2.0, turns={1: 0.0, 2: 1.0}.get(longest, 2.0))

    def all_to_all(self) -> float:
        """Return the rate of a rank's data, its own part included: all messages at once; the fullest link decides."""
        fabric, n, loads = self.place.fabric, self.ranks, []
        for share in self._kinds:
            k, groups = len(share.gpus), beside(share)
            away, near = (n - k) / n, (k - 1) / n
            on_card = Counter(fabric.card_of(local, share.ranks) for group in groups for local in group)
            pcie = fabric.network.within == "pcie"
            loads.append((near + away * pcie) / fabric.gpu)
            loads.append(len(groups) * k * (near + 2 * away) / fabric.bridge)
            loads.append(max(on_card.values()) * away / fabric.card)
            loads.append(len(groups) * k * away / fabric.node)
        loads += self._leaves()
        return 1 / max(loads)

    def to_one(self) -> float:
        """Return the rate of a gather or a scatter: the root's links carry all data."""
        fabric, n = self.place.fabric, self.ranks
        k = min(len(share.gpus) for share in self.shares)
        groups = max(len(beside(share)) for share in self.shares)
        sharing = max(max(Counter(fabric.card_of(at, s.ranks) for at in range(groups)).values()) for s in self.shares)
        away, near = (n - k) / n, (k - 1) / n
        pcie = fabric.network.within == "pcie"
        return 1 / max((near + away * pcie) / fabric.gpu, sharing * away / fabric.card, groups * away / fabric.node)

    def _together(self, *, passes: float, turns: float) -> float:
        """Return the rate of all channels together, flows over all the group's nodes; the slowest limits the others."""
        if self.nodes == 1:
            flows = [self._within(share, gpus, turns, 0) for share in self.shares for gpus in beside(share)]
            return self.place.fair(flows)[0]
        groups = min(len(beside(share)) for share in self.shares)
        flows = [self._between(group, ring, passes, turns) for group in range(groups) for ring in range(self.cards)]
        return self.cards * min(self.place.fair(flows)[: self.cards])

    def _within(self, share: NodeShare, gpus: Members, turns: float, in_and_out: int) -> Flow:
        flow: Flow = {("gpu", share.node, local): turns for local in gpus if turns}
        hops = max(0, len(gpus) - 1 + (not in_and_out)) * turns + in_and_out
        if hops:
            flow["bridge", share.node] = float(hops)
        return flow

    def _between(self, group: int, ring: int, passes: float, turns: float) -> Flow:
        flow: Flow = {}
        for share in self._kinds:
            gpus = beside(share)[group]
            turns_here = turns
            if self.place.fabric.network.within == "pcie":  # the path to the card is the GPU's own link
                turns_here = max(turns, passes)
            flow |= self._within(share, gpus, turns_here, 2)
            cards = self._cards(share, gpus)
            card = cards[ring % len(cards)]
            for way in ("out", "in"):
                flow["card", way, share.node, card] = passes
                flow["node", way, share.node] = flow.get(("node", way, share.node), 0.0) + passes
        if self.place.fabric.network.nodes_per_leaf:
            near = self._cards(self.shares[0], beside(self.shares[0])[group])
            for leaf, crossings in self._crossings(near[ring % len(near)]).items():
                flow["leaf", leaf] = crossings * passes
        return flow

    def _crossings(self, card: int) -> Mapping[tuple[int, int], float]:
        """Count how often a ring leaves each leaf switch, including the rings over other nodes of the same leaf."""
        fabric = self.place.fabric
        leaves = [fabric.leaf(share.node, card) for share in self.shares]
        departures = Counter(a for a, b in zip(leaves, [*leaves[1:], leaves[0]], strict=True) if a != b)
        return {leaf: times * self._crowd(leaf) for leaf, times in departures.items()}

    def _crowd(self, leaf: tuple[int, int]) -> float:
        """Return the nodes on a leaf, divided by the group's nodes on it."""
        per = self.place.fabric.network.nodes_per_leaf
        everywhere = {node for node in self.place.nodes_of if node // per == leaf[1]}
        return len(everywhere) / sum(share.node // per == leaf[1] for share in self.shares)

    def _leaves(self) -> list[float]:
        """Return an all-to-all's load on the leaves' uplinks; NCCL changes rails within the node, not in the spine."""
        fabric, per, loads = self.place.fabric, self.place.fabric.network.nodes_per_leaf, []
        if not per or self.nodes == 1:
            return []
        ranks: Counter[int] = Counter()
        for share in self.shares:
            ranks[share.node // per] += len(share.gpus)
        sending: Counter[tuple[int, int]] = Counter()
        for share in self.shares:
            for group in beside(share):
                sending.update(fabric.leaf(share.node, fabric.card_of(local, share.ranks)) for local in group)
        for leaf, count in sending.items():
            loads.append(count * self._crowd(leaf) * (1 - ranks[leaf[1]] / self.ranks) / fabric.uplink)
        return loads

    def _cards(self, share: NodeShare, gpus: Iterable[int]) -> list[int]:
        return sorted({self.place.fabric.card_of(local, share.ranks) for local in gpus})
