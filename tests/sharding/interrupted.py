"""A training that whoever is there can go on with: its steps are the same for any number of ranks.

A step has four micro-batches, dealt to however many ranks there are; gradients have so few bits that all sums are
exact. So the bits of the parameters say whether training went on as if nothing had happened.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from streamrace.device import library
from streamrace.device.device import Device
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.strategy import strategy
from streamrace.scenarios.sharding.topology import Topology
from tests.sharding.training import Net, batch, engine, net, train

MICRO_BATCHES = 4  # of all ranks, in a step


def model(accumulation: int, *, frozen: Collection[str] = ()) -> Net:
    """Gradients of few bits, however many micro-batches their loss is divided by."""

    def few_bits(gradient: Tensor) -> Tensor:
        return (gradient * accumulation * 256).round().clamp(-3, 3) / 256 / accumulation

    made = net(frozen=frozen)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.register_hook(few_bits)
    return made


def begun(
    ranks: int, device: Device | None, name: str, group: int, *, frozen: Collection[str] = (), **how: Any
) -> ShardedEngine:
    """Under the strategy of this ``name``, in groups of ``group``; alone there are no groups."""
    accumulation = MICRO_BATCHES // ranks
    topology = Topology.of(group) if ranks > 1 else alone()
    made = model(accumulation, frozen=frozen)
    return engine(made, strategy(name), topology, device, accumulation=accumulation, **how)


def alone() -> Topology:
    """Of one rank: no group talks."""
    return Topology(0, 1, 1, None, None, None)  # type: ignore[arg-type]


def go_on(trained: ShardedEngine, *, steps: int) -> None:
    """From the step on that the engine has done."""
    place = trained.topology
    for _ in range(steps):
        step = trained.steps
        for turn in range(trained.accumulation):
            trained.backward(trained(*batch(turn * place.ranks + place.rank, step, 0, of=trained)))
            trained.step()


def bits(tensors: Iterable[Tensor]) -> int:
    """A checksum of them all."""
    return zlib.crc32(b"".join(one.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors))


def import_all() -> None:
    """What torch imports with its first optimizer takes seconds: here, and not in each rank that is forked.

    A process with a simulated GPU has imported it (:mod:`tests.housed`), and could not be forked after a backward pass.
    """
    if not library.active():
        train(engine(net(), strategy("NNN"), alone(), None), 0, steps=1)
