"""Computes where each rank's part of a flat run of parameters lies.

A flat run of L elements, padded so that all ranks get the same number, is cut for each level:

* N: the whole run.
* I: the rank's number within its group selects one of ``group`` slices; other groups have the same slices.
* G: each of the I slices is cut again, a part for each group. So a rank's part at a finer level lies within its part
  at the coarser one, and an all-gather between groups joins G parts to an I slice in their order.

A collective across all ranks brings blocks in order of rank, which is group by group, while G parts lie slice by slice:
they are permuted once, by :func:`by_rank` and :func:`by_slice`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from streamrace.scenarios.sharding.strategy import Level


def padded(numel: int, ranks: int) -> int:
    """Round ``numel`` up to a multiple of ``ranks``."""
    return -(-numel // ranks) * ranks


@dataclass(frozen=True)
class ShardLayout:
    """The layout of ``ranks`` in groups of ``group``, for the rank with this ``number`` in group ``where``."""

    ranks: int
    group: int
    where: int
    number: int

    @property
    def groups(self) -> int:
        return self.ranks // self.group

    @property
    def turned(self) -> bool:
        """Check whether G parts are in another order than ranks."""
        return self.group > 1 and self.groups > 1

    def interval(self, level: Level, length: int) -> tuple[int, int]:
        """Return start and end of this rank's part at ``level`` of ``length`` elements, which the ranks divide."""
        size = length // level.parts(self.ranks, self.group)
        start = (0, self.number * size, (self.number * self.groups + self.where) * size)[level]
        return start, start + size

    def by_slice(self, to: Tensor, blocks: Tensor) -> None:
        """Permute blocks in order of rank to G parts in order of their places."""
        to.view(self.group, self.groups, -1).copy_(blocks.view(self.groups, self.group, -1).transpose(0, 1))

    def by_rank(self, to: Tensor, parts: Tensor) -> None:
        """Permute G parts in order of their places to blocks in order of rank."""
        to.view(self.groups, self.group, -1).copy_(parts.view(self.group, self.groups, -1).transpose(0, 1))
