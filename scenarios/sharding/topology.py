"""Groups ranks: defines which ranks shard with each other.

Ranks count group by group: rank r is number r % group of group r // group. A group's ranks are well connected, usually
a node. Torch's DeviceMesh creates the process groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from streamrace.scenarios.sharding.strategy import ShardingError


def groups_of(ranks: int, group: int) -> int:
    """Return the number of groups. Raises :class:`ShardingError` when they do not divide the ranks."""
    if group < 1 or ranks % group:
        fitting = ", ".join(str(size) for size in range(1, ranks + 1) if ranks % size == 0)
        raise ShardingError(f"groups of {group} do not divide {ranks} ranks: choose one of {fitting}")
    return ranks // group


@dataclass(frozen=True)
class Topology:
    """This rank's position. ``across``: all ranks; ``within``: its group; ``between``: its number's, in every group."""

    rank: int
    ranks: int
    group: int  # ranks in a group
    across: dist.ProcessGroup
    within: dist.ProcessGroup
    between: dist.ProcessGroup

    @property
    def groups(self) -> int:
        return self.ranks // self.group

    @property
    def number(self) -> int:
        """Return this rank's number within its group."""
        return self.rank % self.group

    @property
    def where(self) -> int:
        """Return the number of this rank's group."""
        return self.rank // self.group

    @classmethod
    def of(cls, group: int, device_type: str = "cpu") -> Topology:
        """Create the topology of the default process group in groups of ``group``. Raises :class:`ShardingError`."""
        ranks = dist.get_world_size()
        shape = (groups_of(ranks, group), group)
        mesh: DeviceMesh = init_device_mesh(device_type, shape, mesh_dim_names=("between", "within"))
        across = dist.group.WORLD
        assert across is not None
        return cls(dist.get_rank(), ranks, group, across, mesh.get_group("within"), mesh.get_group("between"))
