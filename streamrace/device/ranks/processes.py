"""Runs the ranks of a program written for ``torchrun``: their output goes where their parent's goes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable

from streamrace.device import cuda
from streamrace.device.ranks.launcher import launch
from streamrace.device.ranks.ports import free_port
from streamrace.process.child import Send


def run(world: int, target: Callable[[int], None]) -> None:
    """Run ``target(rank)`` in ``world`` processes; return when all are done.

    The processes have the environment variables of ``torchrun``, and a GPU each, but see all GPUs. Raise
    :class:`streamrace.device.ranks.RankFailed` for the first rank that fails; no process is left in any case.
    """
    port = free_port()
    interrupt = signal.getsignal(signal.SIGINT)

    def work(rank: int, _: Send) -> None:
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
        cuda.see(world)
        gc.collect()  # makes the time of the next collection independent of the parent
        target(rank)

    for _ in launch(world, work):
        pass
