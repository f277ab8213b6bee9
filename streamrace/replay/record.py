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
"""Uses ``torch.cuda``; the device is passed for its probes (:meth:`Device.probe`)."""

_PATIENCE_S = 60.0  # of torch.distributed


def plain_timing(world: int = 1, profile: str = "a100-100gbps") -> HardwareTiming:
    """Return a timing with all ranks on one node and nothing stretched."""
    return HardwareTiming(load_profile(profile), (0,) * world)


def record(program: RankProgram, timing: HardwareTiming | None = None) -> Recording:
    """Run ``program`` on a simulated GPU, as the only rank, in a fork of this process, and record it.

    The program gets the device; values to be compared are passed to :meth:`Device.probe`. This process must have a
    simulated GPU (``streamrace device``, ``pytest --stream-device cuda``), may have used it, and may not have run a
    backward pass on it. Raises RuntimeError without a simulated GPU, :class:`RankFailed` if the program raises, with
    its output as a note, and :class:`streamrace.replay.faults.ReplayError` if the program's work cannot be replayed.
    """
    functions().drain()  # a fork does not inherit the work that was begun before it
    with TemporaryDirectory(prefix="record-") as folder:
        try:
            return record_ranks(program, Path(folder), timing or plain_timing())
        except RankFailed as failed:
            alone = RankFailed(failed.rank, failed.reason)
            if failed.log is not None and failed.log.exists():
                alone.add_note(failed.log.read_text(errors="replace"))
            raise alone from None


def record_ranks(program: RankProgram, folder: Path, timing: HardwareTiming) -> Recording:
    """Run and record ``program`` on one process for each rank of ``timing``, with ``torch.distributed``.

    ``folder`` receives the traces and the ranks' output. Each of several ranks has a GPU of its own: this process may
    not have used its own. Raises as :func:`record` does.
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
        index, local_world = nodes[: me.rank].count(node), nodes.count(node)
        launched = {"RANK": me.rank, "WORLD_SIZE": me.world, "LOCAL_RANK": index, "LOCAL_WORLD_SIZE": local_world}
        os.environ.update({name: str(value) for name, value in (launched | {"GROUP_RANK": node}).items()})
        device = Device(timing, rank=me.rank, world=me.world, devices=local_world, index=index)
        device.begin(file_of(trace, me.rank), {}, record=True)
        if me.world > 1:
            me.join("nccl", patience_s=_PATIENCE_S)
        program(device)
        device.finish()

    run_ranks(len(nodes), target, folder=folder / "logs")
    return Recording.load(trace)
