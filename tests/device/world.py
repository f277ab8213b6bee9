"""Several ranks in a test: a program on each, on the device or plainly on the CPU with gloo."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from streamrace.detectors import find_races
from streamrace.detectors.order.races import Race
from streamrace.device import collectives
from streamrace.device.costs import Costs, use
from streamrace.device.ranks import processes
from streamrace.device.tracing import Tracer
from streamrace.trace.files import TraceWriter, file_of

Program = Callable[[int, int, str], Any]
"""Gets rank, world and device; what it gives is pickled."""


def together(
    world: int,
    program: Program,
    folder: Path,
    *,
    device: str = "cuda",
    backend: str = "",
    slow: dict[str, float] | None = None,
) -> list[Any]:
    """Run ``program`` on each rank; gives what the ranks gave. ``slow``: as in :class:`Costs`."""
    folder.mkdir(parents=True, exist_ok=True)

    def target(rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        use(Costs(slow=slow or {}))
        writer = TraceWriter(file_of(folder, rank), rank=rank, world=world, info={})
        tracer = Tracer(writer.write, skipped=("world.py",))
        if device == "cuda":
            torch.cuda.set_device(rank)
        name = backend or ("nccl" if device == "cuda" else "gloo")
        dist.init_process_group(name, timeout=timedelta(seconds=60))
        (folder / f"result{rank}").write_bytes(pickle.dumps(program(rank, world, device)))
        collectives.leave()
        tracer.close()
        writer.close()

    processes.run(range(world), target)
    return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(world)]


def races(folder: Path) -> list[Race]:
    return find_races(folder)


def pairs(folder: Path) -> set[tuple[str, str]]:
    """The kernels of the races, first and second."""
    return {(race.first.kernel, race.second.kernel) for race in find_races(folder)}
