"""Measures HO-Ring against a flat and a hierarchical ring: virtual time of 1 GB on 16 to 128 GPUs, in dry runs.

The cluster is that of arXiv 2310.06003, which reports 25.2 to 39.7 % less time than a flat ring for the all-gather. The
flat ring by hand is a single ring, over one network card. NCCL lays a ring over each card of a node, and divides the
blocks among the rings: its time (``streamrace/device/hardware/network``) and HO-Ring's saving on it are in the note.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.figures import Figure
from papers.programs.ring_run import RINGS, rehearsed
from streamrace.device.device import Device
from streamrace.device.hardware import Clock, HardwareTiming, load_profile
from streamrace.scenarios.sharding.lanes import LaneOrder, TracedStreams
from streamrace.scenarios.sharding.rings import Collectives
from streamrace.scenarios.sharding.topology import Topology

PROFILE = load_profile("dgx-a100-roce")
RANKS = (16, 32, 64, 128)
ELEMENTS = 250_000_000  # 1 GB of float32
LIMIT = 75.0  # %: the paper's smallest saving
OPERATIONS = ("all-gather", "reduce-scatter", "all-reduce")
Times = dict[tuple[str, str], float]


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Return the times of the simulator's clock: the same on every machine."""
    say("rings: dry runs")
    command = [sys.executable, "-m", "streamrace.device", "-m", "benchmarks.rings"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the rings could not be rehearsed:\n{done.stderr[-2000:]}")
    figures = []
    for ranks, told in zip(RANKS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        times = {(ring, operation): ms for ring, operation, ms in told}
        for operation in OPERATIONS:
            flat, hierarchical, ho = (times[ring, operation] for ring in RINGS)
            nccl = nccl_ms(operation, ranks)
            what = f"{operation} of 1 GB on {ranks} GPUs, virtual time: HO-Ring against a flat ring"
            others = f"hierarchical {hierarchical:.1f}, flat {flat:.1f}, NCCL {nccl:.1f}"
            note = f"{ho:.1f} ms; {others}: {1 - ho / nccl:.0%} less than NCCL"
            figures.append(Figure("rings", what, ho / flat * 100, "%", LIMIT, note))
    return figures


def nccl_ms(operation: str, ranks: int, group: int = 8) -> float:
    """Return the virtual milliseconds of NCCL's own collective of as many bytes."""
    members = tuple(range(ranks))
    clock = Clock(HardwareTiming(PROFILE, tuple(rank // group for rank in members)), 0)
    return clock.collective(f"nccl::{operation.replace('-', '_')}", ELEMENTS * 4, members, "nccl", 0, 0) / 1e6


def main() -> None:
    """Print the times, in a process with a simulated GPU; each dry run is a fork of that process."""
    told = []
    for ranks in RANKS:
        with TemporaryDirectory() as folder:
            times = timed(ranks, Path(folder))
        told.append([[*which, ms] for which, ms in times.items()])
    print(json.dumps(told))


def timed(ranks: int, folder: Path, elements: int = ELEMENTS, group: int = 8) -> Times:
    """Return virtual milliseconds by ring and operation, in a dry run as rank 0 of ``ranks``, one group to a node.

    The process has a simulated GPU. ``folder``: receives the trace.
    """
    timing = HardwareTiming(PROFILE, tuple(rank // group for rank in range(ranks)))

    def program(device: Device) -> list[tuple[str, str, float]]:
        topology, order = Topology.of(group), LaneOrder(TracedStreams(device))
        return [
            (ring, operation, virtual_ms(make(topology, order), operation, elements, ranks))
            for ring, make in RINGS.items()
            for operation in OPERATIONS
        ]

    told = rehearsed(timing, folder, program, info={})[0]
    return {(ring, operation): ms for ring, operation, ms in told}


def virtual_ms(ring: Collectives, operation: str, elements: int, ranks: int) -> float:
    """Measure from the call to its result, on the caller's lane, with no other work in progress."""
    whole, part = (torch.empty(numel, device="cuda") for numel in (elements, elements // ranks))
    torch.cuda.synchronize()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    if operation == "all-gather":
        ring.all_gather(whole, part)
    elif operation == "reduce-scatter":
        ring.reduce_scatter(part, whole)
    else:
        ring.all_reduce(whole)
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))


if __name__ == "__main__":
    main()
