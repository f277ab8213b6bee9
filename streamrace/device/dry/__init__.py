"""Runs a program dry: as one rank of many, on tensors that hold no values.

A trace records the same as in a live run: launches and their accesses, streams, memory, virtual time. Only values are
missing, so a model of any size needs neither GPUs nor the host's memory. The C++ part decides which tensors have values
all the same (``csrc/dry.h``). A program that reads an absent value is refused (:mod:`.reading`); the other ranks are
taken to do the same as this rank at the same time (:mod:`.groups`). See ``docs/concepts/dry.md``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamrace.device.dry.broadcast_cache import BroadcastCache
from streamrace.device.hardware import HardwareTiming, Profile, load_profile

if TYPE_CHECKING:
    from torch.distributed import Store


class Together(NamedTuple):
    """The ranks of a dry run that run together, each in a process; ``file`` is where they find each other."""

    ranks: tuple[int, ...]
    file: Path


@dataclass(frozen=True)
class World:
    """``ranks`` in all, ``per_node`` of them on each node. Raises ValueError if they do not fill the nodes.

    ``rank``: the rank as which the program runs.

    ``hardware``: a profile (:mod:`streamrace.device.hardware`) that gives the ranks' speed and memory; empty: the
    device's own simple model (:mod:`streamrace.device.costs`). ``network``: Gbit/s between nodes instead of the
    profile's.
    """

    ranks: int = 1
    per_node: int = 0  # 0: all on one node
    hardware: str = ""
    network: float | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_node < 0:
            raise ValueError("a dry run needs one rank or more")
        if self.ranks % self.local:
            raise ValueError(f"{self.ranks} ranks do not fill nodes of {self.local}: choose another number of ranks")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"there is no rank {self.rank} among {self.ranks}: they are 0 to {self.ranks - 1}")
        if self.network and not self.hardware:
            raise ValueError("a network belongs to a hardware profile: name one")

    @property
    def local(self) -> int:
        return self.per_node or self.ranks

    def every(self, count: int, file: Path) -> Together:
        """Return ``count`` ranks that run together, equally far apart: ``count`` divides the number of all ranks."""
        return Together(tuple(range(0, self.ranks, self.ranks // count)), file)

    def profile(self) -> Profile | None:
        """Return the machine's profile, or None. Raise :class:`streamrace.device.hardware.ProfileError` if unknown."""
        if not self.hardware:
            return None
        profile = load_profile(self.hardware)
        return profile.on_network(self.network) if self.network else profile


REAL = 1 << 20
"""Size in bytes up to which a tensor may have values."""

TRUSTED: dict[str, float | None] = {
    "torch/amp/grad_scaler.py": 0.0,  # no infinite value was found
    "torch/distributed/fsdp/sharded_grad_scaler.py": 0.0,
    "megatron/core/optimizer/clip_grads.py": 1.0,  # the norm of all gradients
    "megatron/core/optimizer/optimizer.py": 0.0,  # no infinite gradient was found
    "megatron/core/utils.py": 1.0,  # the norm of one gradient
    "torch/nn/init.py": None,  # no number has to be drawn again (trunc_normal_)
    "transformers/trainer.py": None,  # reads a flag: whether the loss is infinite
}
"""Files, or folders with a slash, whose reads only check that all went well, and the number that they read.

Flags are read as not set; None: only flags are answered. Frameworks' adapters add their files.
"""

_world: list[World] = []
_together: list[Together] = []
_real: list[int] = [REAL]


def active() -> bool:
    """Check whether this process is on a dry run."""
    return bool(_world)


def running() -> tuple[int, ...]:
    """Return the ranks that run, each in a process: this one, and those with which it runs."""
    return _together[0].ranks if _together else (_world[0].rank,)


def store() -> Store:
    """Return a new connection to the store by which the ranks that run find each other."""
    from torch import distributed

    if not _together:
        return distributed.HashStore()
    return distributed.FileStore(str(_together[0].file), len(_together[0].ranks))


def may_have_values(nbytes: int) -> bool:
    """Check whether a tensor of this size may have values."""
    return nbytes <= _real[0]


def info() -> dict[str, object]:
    """Return the trace's entries about the run: whether it is dry, and the ranks that stand for all, if several do."""
    together: dict[str, object] = {"running": list(running())} if _together else {}
    return {"mirrored": True, "dry": True, **together} if _world else {}


def environment(world: World) -> dict[str, str]:
    """Return the environment variables that ``torchrun`` would set for the rank."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_RANK": str(world.rank % world.local),
        "LOCAL_WORLD_SIZE": str(world.local),
        "GROUP_RANK": str(world.rank // world.local),
        "GROUP_WORLD_SIZE": str(world.ranks // world.local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # nothing listens on this port
    }


def install(
    world: World,
    *,
    real: int = REAL,
    profile: Profile | None = None,
    answers: bool = True,
    limited: bool = True,
    heard: BroadcastCache | None = None,
    together: Together | None = None,
) -> None:
    """Make the device of this process a dry one, before it is used. ``real``: see :data:`REAL`.

    ``profile``: the machine, instead of the world's. Without ``answers`` every query (``query()``) reports unfinished
    work: the program's branches then do not depend on the timing, so that its trace can be timed anew. Not
    ``limited``: the program may exceed the machine's memory, to measure how much it needs. ``heard``: the broadcasts
    of rank 0 in a dry run of its own, from which another rank receives them (:mod:`.broadcast_cache`). ``together``:
    this and other ranks run at once (:mod:`.groups`).
    """
    from streamrace.device import cuda, memory, work
    from streamrace.device.dry import groups, reading, steps
    from streamrace.device.library import functions

    if functions().used():
        raise RuntimeError("a dry run begins before the device is used")
    os.environ.update(environment(world))
    _world[:] = [world]
    _together[:] = [together] if together is not None and len(together.ranks) > 1 else []
    _real[:] = [real]
    cuda.see(world.local)
    work.leave_values_out()
    functions().answers(answers)
    if profile := profile or world.profile():
        _use(profile, world)
    if not limited:
        memory.overdraw()
    reading.install(real)
    groups.install(heard)
    steps.install()


def _use(profile: Profile, world: World) -> None:
    """Give the device that machine's costs and memory. A size of memory set in the environment stays."""
    import torch

    from streamrace.device import costs, cuda, memory
    from streamrace.device.hardware_costs import clocked

    costs.use(clocked(HardwareTiming(profile, tuple(rank // world.local for rank in range(world.ranks))), world.rank))
    os.environ.setdefault("STREAMRACE_MEMORY", f"{profile.capacity}B")
    cuda.DeviceProperties.total_memory = memory.total()
    for name, function in memory.torch_functions().items():
        setattr(torch._C, name, function)
