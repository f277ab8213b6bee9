"""A dry run: a program as one rank of many, on tensors that hold nothing.

A trace records the same as in a live run: launches and what they touch, streams, memory, virtual time. What is missing
are values, so a model of any size needs neither GPUs nor the host's memory. The C++ part says what has values all
the same (``csrc/dry.h``). A program that reads one that is not there is refused (:mod:`.reading`); the other ranks do
what this one does, at the same time (:mod:`.groups`). See ``docs/concepts/dry.md``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from streamrace.device.dry.heard import Heard
from streamrace.device.hardware import HardwareTiming, Profile, load_profile


@dataclass(frozen=True)
class World:
    """``ranks`` in all, ``per_node`` of them on each node. Raises ValueError where that does not come out even.

    ``rank``: the one that the program is.

    ``hardware``: a profile (:mod:`streamrace.device.hardware`) that says how fast they are and how much memory they
    have; empty: the device's own plain model (:mod:`streamrace.device.costs`). ``network``: Gbit/s between nodes
    instead of the profile's.
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

    def profile(self) -> Profile | None:
        """The machine. Raises :class:`streamrace.device.hardware.ProfileError` where there is none of that name."""
        if not self.hardware:
            return None
        profile = load_profile(self.hardware)
        return profile.on_network(self.network) if self.network else profile


REAL = 1 << 20
"""Bytes up to which a tensor may have values."""

TRUSTED: dict[str, float | None] = {
    "torch/amp/grad_scaler.py": 0.0,  # nothing infinite was found
    "torch/distributed/fsdp/sharded_grad_scaler.py": 0.0,
    "transformers/trainer.py": None,  # is the loss infinite?
}
"""Files, or folders with a slash, whose reads only ask whether all went well, and the number they get.

A flag that they read is not set; None: only flags are answered. Frameworks' adapters add theirs.
"""

_world: list[World] = []
_real: list[int] = [REAL]


def active() -> bool:
    """Is this process on a dry run?"""
    return bool(_world)


def may_have_values(nbytes: int) -> bool:
    """May a tensor of this size have values?"""
    return nbytes <= _real[0]


def info() -> dict[str, object]:
    """What a trace says of the run: one rank stands for all."""
    return {"mirrored": True, "dry": True} if _world else {}


def environment(world: World) -> dict[str, str]:
    """What ``torchrun`` would set for the rank."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_RANK": str(world.rank % world.local),
        "LOCAL_WORLD_SIZE": str(world.local),
        "GROUP_RANK": str(world.rank // world.local),
        "GROUP_WORLD_SIZE": str(world.ranks // world.local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # nobody listens there
    }


def install(
    world: World,
    *,
    real: int = REAL,
    profile: Profile | None = None,
    answers: bool = True,
    limited: bool = True,
    heard: Heard | None = None,
) -> None:
    """Make the device of this process a dry one, before it is used. ``real``: see :data:`REAL`.

    ``profile``: the machine, instead of the world's. Without ``answers`` no work is done yet when the program asks
    (``query()``): what it does then does not depend on the timing, so that its trace can be timed anew. Not
    ``limited``: it may take more memory than the machine has, to see how much that is. ``heard``: what rank 0 has
    broadcast in a dry run of its own, which another rank is given (:mod:`.heard`).
    """
    from streamrace.device import cuda, memory, work
    from streamrace.device.dry import groups, reading, steps
    from streamrace.device.library import functions

    if functions().used():
        raise RuntimeError("a dry run begins before the device is used")
    os.environ.update(environment(world))
    _world[:] = [world]
    _real[:] = [real]
    cuda.see(world.local)
    work.leave_values_out()
    functions().answers(answers)
    if profile := profile or world.profile():
        _use(profile, world)
    if not limited:
        memory.unlimited()
    reading.install(real)
    groups.install(heard)
    steps.install()


def _use(profile: Profile, world: World) -> None:
    """Let the device be one of that machine. A size of memory that the environment names stays."""
    import torch

    from streamrace.device import costs, cuda, memory
    from streamrace.device.clocked import clocked

    costs.use(clocked(HardwareTiming(profile, tuple(rank // world.local for rank in range(world.ranks))), world.rank))
    os.environ.setdefault("STREAMRACE_MEMORY", f"{profile.capacity}B")
    cuda.DeviceProperties.total_memory = memory.total()
    for name, function in memory.given().items():
        setattr(torch._C, name, function)
