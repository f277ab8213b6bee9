"""Records a program on the simulated GPU, on one rank or several, so that it can be replayed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from streamrace.device import cuda
from streamrace.device.device import Device
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.device.library import functions
from streamrace.device.ranks.cluster import Rank, RankFailed, run_ranks
from streamrace.replay.recording import Recording
from streamrace.trace.files import file_of

RankProgram = Callable[[Device], object]
"""It says ``torch.cuda``; the device is there for what it wants seen (:meth:`Device.probe`)."""

_PATIENCE_S = 60.0  # of torch.distributed


def plain_timing(world: int = 1, profile: str = "a100-100gbps") -> HardwareTiming:
    """All ranks on one node, nothing stretched."""
    return HardwareTiming(load_profile(profile), (0,) * world)


def record(program: RankProgram, timing: HardwareTiming | None = None) -> Recording:
    """Run ``program`` on a simulated GPU, as the only rank, in a fork of this process, and record it.

    The program gets the device; values that it calls right or wrong are given to :meth:`Device.probe`. This process
    must have a simulated GPU (``streamrace device``, ``pytest --stream-device cuda``), may have used it, and may not
    have run a backward pass on it. Raises RuntimeError where it has none, :class:`RankFailed` where the
    program raises, with what it printed as a note, and :class:`streamrace.replay.faults.ReplayError` where it did what
    cannot be replayed.
    """
    functions().drain()  # a fork has no part in what was begun before it
    with TemporaryDirectory(prefix="record-") as folder:
        try:
            return record_ranks(program, Path(folder), timing or plain_timing())
        except RankFailed as failed:
            alone = RankFailed(failed.rank, failed.reason)
            if failed.log is not None and failed.log.exists():
                alone.add_note(failed.log.read_text(errors="replace"))
            raise alone from None


def record_ranks(program: RankProgram, folder: Path, timing: HardwareTiming) -> Recording:
    """The same on as many ranks as ``timing`` says nodes of, in processes of their own, with ``torch.distributed``.

    ``folder`` takes the traces and what the ranks print. Of several ranks each has a GPU of its own: this process may
    not have used its one. Raises as :func:`record` does.
    """
    functions()
    nodes = timing.nodes_of
    trace = folder / "trace"
    trace.mkdir(parents=True, exist_ok=True)

    def target(me: Rank) -> None:
        torch.set_num_threads(1)
        if me.world == 1:
            cuda.take_over()
        node = nodes[me.rank]
        index, here = nodes[: me.rank].count(node), nodes.count(node)
        launched = {"RANK": me.rank, "WORLD_SIZE": me.world, "LOCAL_RANK": index, "LOCAL_WORLD_SIZE": here}
        os.environ.update({name: str(value) for name, value in (launched | {"GROUP_RANK": node}).items()})
        device = Device(timing, rank=me.rank, world=me.world, devices=here, index=index)
        device.begin(file_of(trace, me.rank), {}, record=True)
        if me.world > 1:
            me.join("nccl", patience_s=_PATIENCE_S)
        program(device)
        device.finish()

    run_ranks(len(nodes), target, folder=folder / "logs")
    return Recording.load(trace)
