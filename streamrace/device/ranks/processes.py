"""Runs the ranks of a program written for ``torchrun``: their output goes where their parent's goes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from streamrace.device import cuda
from streamrace.device.library import functions
from streamrace.device.ranks.launcher import launch
from streamrace.device.ranks.output import FOLDED, OutputPump
from streamrace.device.ranks.ports import free_port
from streamrace.process.child import Send
from streamrace.process.interrupts import held


def run(ranks: Sequence[int], target: Callable[[int], None], output: Path | None = None) -> None:
    """Run ``target(rank)`` in a process for each of ``ranks``; return when all are done.

    The processes have the environment variables of ``torchrun``, and a GPU each, but see all GPUs.
    ``output``: a file that gets all that they print, which is folded then; beside it a note says what. Raise
    :class:`streamrace.device.ranks.RankFailed` for the first rank that fails; no process is left in any case.
    """
    port, world = free_port(), len(ranks)
    pump = OutputPump(ranks, output, output.with_name(FOLDED)) if output is not None else None
    interrupt = signal.getsignal(signal.SIGINT)

    def work(rank: int, _: Send) -> None:
        if pump is not None:
            pump.enter(rank)
        signal.signal(signal.SIGINT, interrupt)
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        cuda.see(world * functions().most())
        gc.collect()  # makes the time of the next collection independent of the parent
        target(rank)

    try:
        for _ in launch(ranks, work, started=(lambda _: pump.begin()) if pump is not None else None):
            pass
    finally:
        if pump is not None:
            with held():
                pump.end()
