"""Devices for tests: one alone, or one per rank in processes of their own.

A kernel takes 2 us, a launch 5 us of the host's time (profile ``a100-100gbps``), so on a device nothing
is ever late by itself. Tests make a stream slow by ``slow={"stream:name": factor}``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from detectors import HappensBefore
from repro.accelerator.collectives import BACKEND, register
from repro.accelerator.costs import Clock, Timing, load_profile
from repro.accelerator.device import Device, Stream
from repro.accelerator.exchange import PipeExchange
from repro.cluster import Rank, run_ranks
from repro.trace import TraceRecord, TraceWriter, begin, file_of

torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

US = 1000
KERNEL, LAUNCH, SYNCHRONIZE = 2 * US, 5 * US, 10 * US


def timing_of(
    world: int, *, profile: str = "a100-100gbps", nodes_of: tuple[int, ...] | None = None, **timing: Any
) -> Timing:
    """``nodes_of``: by rank; None: all on one."""
    return Timing(load_profile(profile), nodes_of or (0,) * world, **timing)


def clock(rank: int = 0, world: int = 1, **timing: Any) -> Clock:
    """``timing``: see :func:`timing_of`."""
    return Clock(timing_of(world, **timing), rank)


class Told(Device):
    """A device that keeps its trace in ``records``."""

    def __init__(self, **timing: Any) -> None:
        self.records: list[TraceRecord] = [begin(0, 1)]
        super().__init__(clock(**timing), write=self.records.extend)

    def side(self, name: str = "side") -> Stream:
        stream = Stream(self)
        stream.rename(name)
        return stream

    def of(self, kind: type[Any]) -> list[Any]:
        """The records of one kind so far, work that is not done included."""
        self.journal.flush(everything=True)
        return [record for record in self.records if isinstance(record, kind)]

    def races(self) -> list[str]:
        """What the detector says of the whole program: kind, first stream, second stream."""
        self.finish()
        detector = HappensBefore()
        detector.feed(0, self.records)
        detector.finish()
        return [f"{race.kind} {race.first.stream} {race.second.stream}" for race in detector.races]


def is_poison(tensor: torch.Tensor) -> bool:
    return all(value != value for value in tensor.flatten().tolist())


Program = Callable[[Rank, Device | None], Any]


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

    ``record``: they can be replayed.
    """
    trace = folder / "trace"
    trace.mkdir(parents=True, exist_ok=True)
    said: dict[int, Any] = {}

    def target(me: Rank) -> None:
        torch.manual_seed(me.rank)
        store = dist.FileStore(str(me.store), me.world)
        place: dict[str, Any] = {"rank": me.rank, "world_size": me.world, "timeout": timedelta(seconds=120)}
        if not simulated:
            dist.init_process_group("gloo", store=store, **place)
            me.say({"result": program(me, None)})
            return
        info = {"timing": timing_of(world, **timing).as_dict()}
        writer = TraceWriter(file_of(trace, me.rank), rank=me.rank, world=me.world, info=info)
        exchange = PipeExchange(me.rank, me.links)
        ours = clock(me.rank, world, **timing)
        device = Device(ours, rank=me.rank, exchange=exchange, write=writer.write, record=record)
        with device:
            register()
            dist.init_process_group(BACKEND, store=store, **place)
            result = program(me, device)
            device.finish()
            if record:
                writer.close()  # sealed, as a recording has to be
            me.say({"result": result})

    def hear(rank: int, message: dict[str, Any]) -> None:
        said[rank] = message["result"]

    run_ranks(world, target, folder=folder / "logs", hear=hear, silence_s=silence_s)
    return [said[rank] for rank in range(world)]
