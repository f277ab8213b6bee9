"""Defines the objects that the formulas compare: ways to shard, hpZ among them, and clusters. No tensor is created."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from streamrace.scenarios.sharding.strategy import Level, ShardingError, Strategy, legal, strategy
from streamrace.scenarios.sharding.topology import groups_of


@dataclass(frozen=True)
class Scheme:
    """A strategy, with or without hpZ's copy of the parameters. Raises :class:`ShardingError`: only GGG can have it."""

    strategy: Strategy
    copy: bool = False

    def __post_init__(self) -> None:
        if self.copy and str(self.strategy) != "GGG":
            raise ShardingError(
                f"hpZ keeps a copy of what is sharded over all: its strategy is GGG, not {self.strategy}"
            )

    def __str__(self) -> str:
        return "hpZ" if self.copy else str(self.strategy)

    @property
    def title(self) -> str:
        """Return its name, with the common one."""
        return "hpZ (ZeRO++)" if self.copy else self.strategy.title


HPZ = Scheme(Strategy(Level.G, Level.G, Level.G), copy=True)


def scheme(text: str) -> Scheme:
    """Parse letters or a name, in any case; ``hpZ`` is one. Raises :class:`ShardingError`."""
    return HPZ if text.upper() == "HPZ" else Scheme(strategy(text))


def schemes() -> tuple[Scheme, ...]:
    """Return all 14 strategies, and hpZ."""
    return (*(Scheme(strategy) for strategy in legal()), HPZ)


class RingPlace(StrEnum):
    """The ranks of a collective: the groups of :class:`streamrace.scenarios.sharding.topology.Topology`."""

    WITHIN = "within"
    BETWEEN = "between"
    ACROSS = "across"


class RingShape(NamedTuple):
    """Ranks of one collective, their nodes, and the number of such rings that share a node's network."""

    ranks: int
    nodes: int
    flows: int


@dataclass(frozen=True)
class Cluster:
    """A cluster: ``ranks`` in groups of ``group``, node by node on ``gpus`` each. Raises :class:`ShardingError`."""

    ranks: int
    group: int
    gpus: int

    def __post_init__(self) -> None:
        groups_of(self.ranks, self.group)
        if self.gpus < 1 or self.ranks % self.gpus:
            raise ShardingError(f"nodes of {self.gpus} GPUs do not make {self.ranks} ranks: leave no node half empty")
        if self.group % self.gpus and self.gpus % self.group:
            raise ShardingError(
                f"groups of {self.group} would end in the middle of nodes of {self.gpus} GPUs: choose a part of a node "
                "that divides it, or whole nodes"
            )

    @property
    def groups(self) -> int:
        return self.ranks // self.group

    def ring(self, where: RingPlace) -> RingShape:
        """Return the ring's shape, the same for every rank, as groups and nodes are equal."""
        ranks = {RingPlace.WITHIN: self.group, RingPlace.BETWEEN: self.groups, RingPlace.ACROSS: self.ranks}[where]
        on_a_node = {
            RingPlace.WITHIN: min(self.group, self.gpus),
            RingPlace.BETWEEN: max(1, self.gpus // self.group),
            RingPlace.ACROSS: self.gpus,
        }[where]
        return RingShape(ranks, ranks // on_a_node, self.gpus // on_a_node)
