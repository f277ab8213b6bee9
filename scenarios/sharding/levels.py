"""Moves flat runs from one level to another: the collectives of PaRO's table (arXiv 2310.06003, section 3).

Between N and I the ranks of a group communicate, between I and G those of the same number in all groups, between N and
G all. A group of one sends nothing. All work is issued on the current lane, which is ordered after the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from streamrace.scenarios.sharding.layout import ShardLayout
from streamrace.scenarios.sharding.rings import Collectives
from streamrace.scenarios.sharding.strategy import Level


@dataclass(frozen=True)
class Levels:
    """Moves runs by collectives of :class:`streamrace.scenarios.sharding.topology.Topology`'s three process groups."""

    layout: ShardLayout
    across: Collectives
    within: Collectives
    between: Collectives

    def gather(self, to: Tensor, parts: Tensor, fine: Level, coarse: Level) -> None:
        """All-gather every rank's ``parts`` at level ``fine`` into ``to``, this rank's part at level ``coarse``."""
        if to.numel() == parts.numel():
            to.copy_(parts)
        elif (fine, coarse) != (Level.G, Level.N):
            self._between_levels(fine).all_gather(to, parts)
        elif self.layout.turned:
            blocks = torch.empty_like(to)
            self.across.all_gather(blocks, parts)
            self.layout.by_slice(to, blocks)
        else:
            self.across.all_gather(to, parts)

    def scatter(self, to: Tensor, whole: Tensor, coarse: Level, fine: Level) -> None:
        """Reduce-scatter every rank's ``whole`` at level ``coarse`` into ``to``, this rank's part at level ``fine``."""
        if to.numel() == whole.numel():
            to.copy_(whole)
        elif (coarse, fine) != (Level.N, Level.G):
            self._between_levels(fine).reduce_scatter(to, whole)
        elif self.layout.turned:
            blocks = torch.empty_like(whole)
            self.layout.by_rank(blocks, whole)
            self.across.reduce_scatter(to, blocks)
        else:
            self.across.reduce_scatter(to, whole)

    def sum(self, tensor: Tensor, level: Level) -> None:
        """All-reduce, in place, over all ranks that have the same part at ``level``."""
        if level is Level.N and self.layout.ranks > 1:
            self.across.all_reduce(tensor)
        elif level is Level.I and self.layout.groups > 1:
            self.between.all_reduce(tensor)

    def total(self, tensor: Tensor, level: Level) -> None:
        """All-reduce, in place, over all ranks that have different parts at ``level``."""
        if level is Level.G and self.layout.ranks > 1:
            self.across.all_reduce(tensor)
        elif level is Level.I and self.layout.group > 1:
            self.within.all_reduce(tensor)

    def _between_levels(self, fine: Level) -> Collectives:
        return self.within if fine is Level.I else self.between
