"""Runs one all-gather dry, by a ring of :mod:`streamrace.scenarios.sharding.rings`, as rank 0 of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from streamrace.device import dry
from streamrace.device.device import Device
from streamrace.device.hardware import HardwareTiming
from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.scenarios.rehearsal import dry_gpu
from streamrace.scenarios.sharding.lanes import LaneOrder, TracedStreams
from streamrace.scenarios.sharding.rings import Collectives, FlatRing, HierarchicalRing, HoRing
from streamrace.scenarios.sharding.topology import Topology

RINGS: dict[str, Callable[[Topology, LaneOrder], Collectives]] = {
    "flat": FlatRing,
    "hierarchical": HierarchicalRing,
    "HO-Ring": HoRing,
}
_SILENCE_S = 3600.0  # a program reports at its end only
Result = TypeVar("Result")


class RingDone(NamedTuple):
    """The report of a program's return value."""

    result: Any


def gather(ring: str, timing: HardwareTiming, *, group: int, nbytes: int, folder: Path) -> None:
    """All-gather ``nbytes`` in total, of float32, on ``timing``'s ranks in groups of ``group``, with no other work.

    ``ring``: one of :data:`RINGS`. ``folder`` receives the log and ``trace/rank0.trace``, in which the all-gather is
    step 1, and everything before it step 0. Raises :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    numel = nbytes // 4 // len(timing.nodes_of)

    def on(device: Device) -> None:
        streams = TracedStreams(device)
        made = RINGS[ring](Topology.of(group), LaneOrder(streams))
        part = torch.empty(numel, device=streams.device)
        whole = torch.empty(numel * len(timing.nodes_of), device=streams.device)
        device.synchronize()
        device.phase(1, 1, "forward")
        made.all_gather(whole, part)

    rehearsed(timing, folder, on, info={"ring": ring})


def rehearsed(
    timing: HardwareTiming,
    folder: Path,
    program: Callable[[Device], Result],
    *,
    info: dict[str, Any],
    ranks: Sequence[int] = (0,),
) -> dict[int, Result]:
    """Return the values of ``program`` (serialisable by msgpack), in a dry run as ``ranks`` of ``timing``'s ranks.

    Runs in forks of this process, which has a simulated GPU. All nodes have as many ranks. ``folder`` receives the logs
    and the traces, of rank 0 ``trace/rank0.trace``, which begin with ``info``. Several ranks run together
    (:class:`streamrace.device.dry.Together`). Raises :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    (folder / "trace").mkdir(parents=True, exist_ok=True)
    world, per_node = len(timing.nodes_of), timing.nodes_of.count(timing.nodes_of[0])
    results: dict[int, Result] = {}

    def target(me: Rank) -> None:
        rank = ranks[me.rank]
        together = dry.Together(tuple(ranks), me.store)
        device = dry_gpu(timing, per_node, folder / "trace", info, rank=rank, together=together)
        device.phase(0, 0, "init")
        replace(me, rank=rank, world=world).join("nccl", store=dry.store())
        result = program(device)
        device.finish()
        me.report(RingDone(result))

    def receive(at: int, message: RingDone) -> None:
        results[ranks[at]] = message.result

    run_ranks(len(ranks), target, folder=folder / "logs", kinds=(RingDone,), receive=receive, silence_s=_SILENCE_S)
    return results
