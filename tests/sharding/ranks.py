"""Ranks for tests, in processes of their own: on the simulated GPU, or plainly on the CPU with gloo.

A kernel takes 2 us, a launch 5 us of the host's time (profile ``a100-100gbps``), so on a device nothing is ever late by
itself. Tests make a stream slow by ``slow={"stream:name": factor}``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from streamrace.device.device import Device
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.trace.files import file_of

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

LAUNCH = 5000  # nanoseconds
Program = Callable[[Rank, Device | None], Any]


class Result(NamedTuple):
    """What a rank's program gave."""

    value: Any


def timing_of(
    world: int, *, profile: str = "a100-100gbps", nodes_of: tuple[int, ...] | None = None, **timing: Any
) -> HardwareTiming:
    """``nodes_of``: by rank; None: all on one."""
    return HardwareTiming(load_profile(profile), nodes_of or (0,) * world, **timing)


def together(
    world: int,
    program: Program,
    folder: Path,
    *,
    simulated: bool = True,
    silence_s: float = 120,
    record: bool = False,
    **timing: Any,
) -> list[Any]:
    """Run ``program`` on each rank; gives what the ranks returned. Traces lie in ``folder/trace``.

    ``record``: they can be replayed. ``timing``: see :func:`timing_of`.
    """
    trace = folder / "trace"
    trace.mkdir(parents=True, exist_ok=True)
    said: dict[int, Any] = {}

    def target(me: Rank) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(me.rank)
        device = None
        if simulated:
            timed = timing_of(world, **timing)
            node = timed.nodes_of[me.rank]
            mates = [rank for rank, where in enumerate(timed.nodes_of) if where == node]
            os.environ["GROUP_RANK"] = str(node)
            device = Device(timed, rank=me.rank, world=me.world, devices=len(mates), index=mates.index(me.rank))
            device.begin(file_of(trace, me.rank), {}, record=record)
        store = dist.FileStore(str(me.store), me.world)
        dist.init_process_group(
            "gloo" if device is None else "nccl",
            store=store,
            rank=me.rank,
            world_size=me.world,
            timeout=timedelta(seconds=120),
        )
        result = program(me, device)
        if device is not None:
            device.finish()
        me.report(Result(result))

    def receive(rank: int, message: Result) -> None:
        said[rank] = message.value

    run_ranks(world, target, folder=folder / "logs", kinds=(Result,), receive=receive, silence_s=silence_s)
    return [said[rank] for rank in range(world)]
