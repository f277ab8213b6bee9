"""A dry run: a program as rank 0 of many, on tensors that hold nothing.

All that a trace tells is as in a live run: launches and what they touch, streams, memory, virtual time. What is missing
are values, so a model of any size needs neither GPUs nor the host's memory. The C++ part says what has values all
the same (``csrc/dry.h``). A program that reads one that is not there is refused (:mod:`.reading`); the other ranks do
what this one does, at the same time (:mod:`.groups`). See ``docs/dry.md``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """``ranks`` in all, ``per_node`` of them on each node. Raises ValueError where that does not come out even."""

    ranks: int = 1
    per_node: int = 0  # 0: all on one node

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_node < 0:
            raise ValueError("a dry run needs one rank or more")
        if self.ranks % self.local:
            raise ValueError(f"{self.ranks} ranks do not fill nodes of {self.local}: choose another number of ranks")

    @property
    def local(self) -> int:
        return self.per_node or self.ranks


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
    """What ``torchrun`` would tell rank 0."""
    return {
        "RANK": "0",
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(world.local),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": str(world.ranks // world.local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # nobody listens there
    }


def install(world: World, *, real: int = REAL) -> None:
    """Make the device of this process a dry one, before it is used. ``real``: see :data:`REAL`."""
    from simgpu import cuda
    from simgpu.dry import groups, reading, steps
    from simgpu.library import functions

    if functions().used():
        raise RuntimeError("a dry run begins before the device is used")
    os.environ.update(environment(world))
    _world[:] = [world]
    _real[:] = [real]
    cuda.see(world.local)
    reading.install(real)
    groups.install()
    steps.install()
