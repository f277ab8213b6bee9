"""Records a program on the old accelerator, for what still stands on it: :mod:`repro.replay.record` has the GPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from repro.accelerator.collectives import BACKEND, register
from repro.accelerator.costs import Clock, Timing, load_profile
from repro.accelerator.device import Device
from repro.accelerator.exchange import PipeExchange
from repro.cluster import Rank, run_ranks
from repro.replay.recording import Recording
from repro.trace import TraceRecord, TraceWriter, begin, file_of

Program = Callable[[Device], object]


def plain_timing(world: int = 1, profile: str = "a100-100gbps") -> Timing:
    """All ranks on one node, nothing stretched."""
    return Timing(load_profile(profile), (0,) * world)


def record(program: Program, timing: Timing | None = None) -> Recording:
    """Run ``program`` on a simulated accelerator in this process, as the only rank, and record it.

    The program gets the device; values that it calls right or wrong are given to :meth:`Device.sight`. Raises what
    the program raises, and :class:`repro.replay.faults.ReplayError` where it did what cannot be replayed.
    """
    timing = timing or plain_timing()
    records: list[TraceRecord] = [begin(0, 1, {"timing": timing.as_dict(), "torch": torch.__version__})]
    device = Device(Clock(timing, 0), write=records.extend, record=True)
    with device:
        program(device)
        device.finish()
    return Recording.of({0: records})


def record_ranks(program: Program, folder: Path, timing: Timing) -> Recording:
    """The same on as many ranks as ``timing`` has nodes of, in processes of their own, with ``torch.distributed``.

    ``folder`` takes the traces and what the ranks print. Raises :class:`repro.cluster.RankFailed`.
    """
    world = len(timing.nodes_of)
    trace = folder / "trace"
    trace.mkdir(parents=True, exist_ok=True)
    info = {"timing": timing.as_dict(), "torch": torch.__version__}

    def target(me: Rank) -> None:
        writer = TraceWriter(file_of(trace, me.rank), rank=me.rank, world=me.world, info=info)
        exchange = PipeExchange(me.rank, me.links)
        device = Device(Clock(timing, me.rank), rank=me.rank, exchange=exchange, write=writer.write, record=True)
        register()
        with device:
            dist.init_process_group(
                BACKEND,
                store=dist.FileStore(str(me.store), me.world),
                rank=me.rank,
                world_size=me.world,
                timeout=timedelta(seconds=60),
            )
            program(device)
            device.finish()
        writer.close()

    run_ranks(world, target, folder=folder / "logs", hear=lambda rank, message: None)
    return Recording.load(trace)
