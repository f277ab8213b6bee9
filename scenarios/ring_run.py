"""The dry run of one all-gather, by a ring of :mod:`scenarios.sharding.rings`, as rank 0 of many."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro import deepspeed as adapter
from repro.accelerator.collectives import BACKEND
from repro.accelerator.costs import Timing
from repro.cluster import Rank, run_ranks
from scenarios.rehearsal import dry_device
from scenarios.sharding.lanes import Order, SimulatedStreams
from scenarios.sharding.rings import FlatRing, HierarchicalRing, HoRing
from scenarios.sharding.topology import Topology

RINGS = {"flat": FlatRing, "hierarchical": HierarchicalRing, "HO-Ring": HoRing}


def gather(ring: str, timing: Timing, *, group: int, nbytes: int, folder: Path) -> None:
    """All-gather ``nbytes`` in all, of float32, on ``timing``'s ranks in groups of ``group``; nothing else goes on.

    ``ring``: one of :data:`RINGS`. ``folder`` takes the log and ``trace/rank0.trace``, in which the all-gather is step
    1, and what comes before it step 0. Raises :class:`repro.cluster.RankFailed`.
    """
    (folder / "trace").mkdir(parents=True, exist_ok=True)
    ranks = len(timing.nodes_of)

    def target(me: Rank) -> None:
        device, writer = dry_device(timing, ranks, folder / "trace", {"ring": ring}, answers=False)
        with device:
            adapter.use_simulated(device)
            device.phase(0, 0, "init")
            dist.init_process_group(
                BACKEND, store=dist.HashStore(), rank=0, world_size=ranks, timeout=timedelta(seconds=120)
            )
            made = RINGS[ring](Topology.of(group), Order(SimulatedStreams(device)))
            part = torch.empty(nbytes // 4 // ranks)
            whole = torch.empty(part.numel() * ranks)
            device.synchronize()
            device.phase(1, 1, "forward")
            made.all_gather(whole, part)
            device.finish()
        writer.close()

    heard: list[Any] = []
    run_ranks(1, target, folder=folder / "logs", hear=lambda rank, message: heard.append(message))
