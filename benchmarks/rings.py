"""HO-Ring against a flat and a hierarchical ring: virtual time of 1 GB on 16 to 128 GPUs, in dry runs.

The cluster is that of arXiv 2310.06003, which reports 25.2 to 39.7 % less time than a flat ring for the all-gather. The
flat ring here is one ring, which waits for one link. NCCL may lay several, on network cards of their own, to share the
blocks: what those take at least, (n-1)/n V over all links of a node (Patarasuk and Yuan 2009), stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.figures import Figure
from repro.accelerator.collectives import BACKEND, register
from repro.accelerator.costs import Clock, Timing, load_profile
from repro.accelerator.device import Device, Event
from repro.accelerator.dry import DryDevice
from repro.trace import TraceRecord, begin
from scenarios.sharding.lanes import Order, SimulatedStreams
from scenarios.sharding.rings import Collectives, FlatRing, HierarchicalRing, HoRing
from scenarios.sharding.topology import Topology

PROFILE = load_profile("dgx-a100-roce")
NODE_GBITS = 448.0
RANKS = (16, 32, 64, 128)
ELEMENTS = 250_000_000  # 1 GB of float32
LIMIT = 75.0  # %: the paper's least
RINGS: dict[str, Callable[[Topology, Order], Collectives]] = {
    "flat": FlatRing,
    "hierarchical": HierarchicalRing,
    "HO-Ring": HoRing,
}
OPERATIONS = ("all-gather", "reduce-scatter", "all-reduce")
Times = dict[tuple[str, str], float]


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Nothing is measured but what the simulator's clock says: it is the same on every machine."""
    figures = []
    for ranks in RANKS:
        say(f"rings: {ranks} GPUs")
        times, _ = rehearsed(ranks)
        for operation in OPERATIONS:
            flat, hierarchical, ho = (times[ring, operation] for ring in RINGS)
            turns = 2 if operation == "all-reduce" else 1
            least = turns * (ranks - 1) / ranks * ELEMENTS * 4 * 8 / NODE_GBITS / 1e6
            what = f"{operation} of 1 GB on {ranks} GPUs, virtual time: HO-Ring against a flat ring"
            note = f"{ho:.1f} ms; hierarchical {hierarchical:.1f}, flat {flat:.1f}, on all links at least {least:.1f}"
            figures.append(Figure("rings", what, ho / flat * 100, "%", LIMIT, note))
    return figures


def rehearsed(ranks: int, elements: int = ELEMENTS, group: int = 8) -> tuple[Times, list[TraceRecord]]:
    """Virtual milliseconds by ring and operation, and the trace: a dry run as rank 0 of ``ranks``, a group a node."""
    timing = Timing(PROFILE, tuple(rank // group for rank in range(ranks)))
    records: list[TraceRecord] = [begin(0, ranks, {"mirrored": True, "timing": timing.as_dict()})]
    times: Times = {}
    device = DryDevice(Clock(timing, 0), write=records.extend)
    with device:
        register()
        dist.init_process_group(
            BACKEND, store=dist.HashStore(), rank=0, world_size=ranks, timeout=timedelta(seconds=60)
        )
        try:
            topology, order = Topology.of(group), Order(SimulatedStreams(device))
            for name, make in RINGS.items():
                ring = make(topology, order)
                for operation in OPERATIONS:
                    times[name, operation] = virtual_ms(device, ring, operation, elements, ranks)
            device.finish()
        finally:
            dist.destroy_process_group()
    return times, records


def virtual_ms(device: Device, ring: Collectives, operation: str, elements: int, ranks: int) -> float:
    """From the call to its result, on the caller's lane, when nothing else is going on."""
    whole, part = torch.empty(elements), torch.empty(elements // ranks)
    device.synchronize()
    began, ended = Event(), Event()
    began.record()
    if operation == "all-gather":
        ring.all_gather(whole, part)
    elif operation == "reduce-scatter":
        ring.reduce_scatter(part, whole)
    else:
        ring.all_reduce(whole)
    ended.record()
    return began.elapsed_time(ended)
