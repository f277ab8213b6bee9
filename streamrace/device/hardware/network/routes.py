"""Which links a group's rings, trees and messages use, and the rate that comes of it.

A group of a training job is seldom alone: the other ranks of its nodes are in groups of the same kind, which exchange
at the same time and share the node's cards. They are laid beside it: with every eighth rank in the group, each of the
eight groups has a card, or an eighth of one.

Rings (Patarasuk and Yuan 2009). NCCL lays one per network card that is near one of the group's GPUs: it enters and
leaves every node by that card, and passes the group's GPUs there in between; each carries its part of the bytes. So a
ring over whole nodes uses all cards, one over a GPU of each node one card. Trees (Sanders, Speck and Traeff 2009): two
over the nodes, each for half of the bytes, so that a node is inner in one and a leaf in the other, and a chain in each
node.
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


class Here(NamedTuple):
    """A node as one group sees it: the numbers of its GPUs there, and how many ranks the node has."""

    node: int
    ours: Members
    ranks: int


class PlacedRanks:
    """Where ranks are: ``fabric``, and by rank the node (``nodes_of``)."""

    def __init__(self, fabric: Fabric, nodes_of: Members) -> None:
        self.fabric, self.nodes_of = fabric, nodes_of
        self._ranks = Counter(nodes_of)
        seen: Counter[int] = Counter()
        self.local: list[int] = []
        for node in nodes_of:
            self.local.append(seen[node])
            seen[node] += 1
        self._groups: dict[Members, RoutedGroup] = {}

    def group(self, members: Members) -> RoutedGroup:
        """A group of ranks."""
        made = self._groups.get(members)
        if made is None:
            made = self._groups[members] = RoutedGroup(self, members)
        return made

    def here(self, members: Members) -> list[Here]:
        """The nodes of a group, in the order in which its ranks come to them."""
        found: dict[int, list[int]] = {}
        for rank in members:
            found.setdefault(self.nodes_of[rank], []).append(self.local[rank])
        return [Here(node, tuple(sorted(ours)), self._ranks[node]) for node, ours in found.items()]

    def fair(self, flows: list[Flow]) -> list[float]:
        """GB/s that each gets."""
        fabric = self.fabric
        of = {"gpu": fabric.gpu, "bridge": fabric.bridge, "card": fabric.card, "node": fabric.node}
        of["leaf"] = fabric.uplink
        return fair(flows, {link: of[str(link[0])] for flow in flows for link in flow})

    def send(self, pair: Members, origin: Members) -> float:
        """GB/s of a message, one of those of a ring over ``origin``; every group like that one sends one as well."""
        nodes = {one.node: one for one in self.here(origin)}
        start, end = (nodes[self.nodes_of[rank]] for rank in pair)
        at = [one.ours.index(self.local[rank]) for one, rank in zip((start, end), pair, strict=True)]
        flows = [
            self._message(start, mine[at[0]], end, theirs[at[1]])
            for mine, theirs in zip(beside(start), beside(end), strict=False)
        ]
        return self.fair(flows)[0]

    def _message(self, start: Here, source: int, end: Here, target: int) -> Flow:
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


def beside(one: Here) -> list[Members]:
    """The GPUs of a node by group: those of the one that it is seen by, then those of each other of the same kind."""
    ours, count = one.ours, len(one.ours)
    step = one.ranks // count
    if step * count == one.ranks and all(b - a == step for a, b in pairwise(ours)):
        first = ours[0] if count > 1 else 0
        if first < step:
            turns = [ours, *(tuple(range(at, one.ranks, step)) for at in range(step) if at != ours[0])]
            return turns
    others = [local for local in range(one.ranks) if local not in set(ours)]
    return [ours, *(tuple(others[at : at + count]) for at in range(0, len(others) - count + 1, count))]


class RoutedGroup:
    """The rates of one group of two ranks or more, GB/s."""

    def __init__(self, place: PlacedRanks, members: Members) -> None:
        self.place, self.ranks = place, len(members)
        self.here = place.here(members)
        self.nodes = len(self.here)
        self.cards = 0 if self.nodes == 1 else min(len(self._cards(one, one.ours)) for one in self.here)
        alike: dict[tuple[Members, int], Here] = {}
        for one in self.here:
            alike.setdefault((one.ours, one.ranks), one)
        self._kinds = list(alike.values())  # nodes that look the same hold a ring up alike: one of each will do

    def ring(self) -> float:
        """What all rings of the group carry together."""
        return self._together(passes=1.0, turns=1.0)

    def tree(self) -> float:
        """What the trees carry: of an all-reduce's bytes, which go up and come down again.

        Between two nodes one tree goes up where the other comes down; of more, a node has two children and a parent.
        """
        longest = max(len(one.ours) for one in self.here)
        return self._together(passes=1.0 if self.nodes == 2 else 2.0, turns={1: 0.0, 2: 1.0}.get(longest, 2.0))

    def all_to_all(self) -> float:
        """Of what a rank gives the others, its own part included: all messages at once; the fullest link decides."""
        fabric, n, loads = self.place.fabric, self.ranks, []
        for one in self._kinds:
            k, groups = len(one.ours), beside(one)
            away, near = (n - k) / n, (k - 1) / n
            on_card = Counter(fabric.card_of(local, one.ranks) for group in groups for local in group)
            pcie = fabric.network.within == "pcie"
            loads.append((near + away * pcie) / fabric.gpu)
            loads.append(len(groups) * k * (near + 2 * away) / fabric.bridge)
            loads.append(max(on_card.values()) * away / fabric.card)
            loads.append(len(groups) * k * away / fabric.node)
        loads += self._leaves()
        return 1 / max(loads)

    def to_one(self) -> float:
        """Of a gather or a scatter: the root's links carry all."""
        fabric, n = self.place.fabric, self.ranks
        k = min(len(one.ours) for one in self.here)
        groups = max(len(beside(one)) for one in self.here)
        sharing = max(max(Counter(fabric.card_of(at, one.ranks) for at in range(groups)).values()) for one in self.here)
        away, near = (n - k) / n, (k - 1) / n
        pcie = fabric.network.within == "pcie"
        return 1 / max((near + away * pcie) / fabric.gpu, sharing * away / fabric.card, groups * away / fabric.node)

    def _together(self, *, passes: float, turns: float) -> float:
        """As many flows as channels, each over all the group's nodes; the slowest holds the others up."""
        if self.nodes == 1:
            flows = [self._within(one, ours, turns, 0) for one in self.here for ours in beside(one)]
            return self.place.fair(flows)[0]
        groups = min(len(beside(one)) for one in self.here)
        flows = [self._between(group, ring, passes, turns) for group in range(groups) for ring in range(self.cards)]
        return self.cards * min(self.place.fair(flows)[: self.cards])

    def _within(self, one: Here, ours: Members, turns: float, in_and_out: int) -> Flow:
        flow: Flow = {("gpu", one.node, local): turns for local in ours if turns}
        hops = max(0, len(ours) - 1 + (not in_and_out)) * turns + in_and_out
        if hops:
            flow["bridge", one.node] = float(hops)
        return flow

    def _between(self, group: int, ring: int, passes: float, turns: float) -> Flow:
        flow: Flow = {}
        for one in self._kinds:
            ours = beside(one)[group]
            turns_here = turns
            if self.place.fabric.network.within == "pcie":  # the way to the card is the GPU's own
                turns_here = max(turns, passes)
            flow |= self._within(one, ours, turns_here, 2)
            cards = self._cards(one, ours)
            card = cards[ring % len(cards)]
            for way in ("out", "in"):
                flow["card", way, one.node, card] = passes
                flow["node", way, one.node] = flow.get(("node", way, one.node), 0.0) + passes
        if self.place.fabric.network.nodes_per_leaf:
            near = self._cards(self.here[0], beside(self.here[0])[group])
            for leaf, crossings in self._crossings(near[ring % len(near)]).items():
                flow["leaf", leaf] = crossings * passes
        return flow

    def _crossings(self, card: int) -> Mapping[tuple[int, int], float]:
        """How often a ring leaves each leaf switch, counted with the rings over other nodes on the same leaf."""
        fabric = self.place.fabric
        leaves = [fabric.leaf(one.node, card) for one in self.here]
        left = Counter(a for a, b in zip(leaves, [*leaves[1:], leaves[0]], strict=True) if a != b)
        return {leaf: times * self._crowd(leaf) for leaf, times in left.items()}

    def _crowd(self, leaf: tuple[int, int]) -> float:
        """Nodes of a leaf, for each that the group is on."""
        per = self.place.fabric.network.nodes_per_leaf
        everywhere = {node for node in self.place.nodes_of if node // per == leaf[1]}
        return len(everywhere) / sum(one.node // per == leaf[1] for one in self.here)

    def _leaves(self) -> list[float]:
        """An all-to-all's load on what leaf switches pass on; NCCL changes rails within the node, not in the spine."""
        fabric, per, loads = self.place.fabric, self.place.fabric.network.nodes_per_leaf, []
        if not per or self.nodes == 1:
            return []
        ranks: Counter[int] = Counter()
        for one in self.here:
            ranks[one.node // per] += len(one.ours)
        sending: Counter[tuple[int, int]] = Counter()
        for one in self.here:
            for group in beside(one):
                sending.update(fabric.leaf(one.node, fabric.card_of(local, one.ranks)) for local in group)
        for leaf, count in sending.items():
            loads.append(count * self._crowd(leaf) * (1 - ranks[leaf[1]] / self.ranks) / fabric.uplink)
        return loads

    def _cards(self, one: Here, ours: Iterable[int]) -> list[int]:
        return sorted({self.place.fabric.card_of(local, one.ranks) for local in ours})
