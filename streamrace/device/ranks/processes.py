"""The ranks of a program that is written for ``torchrun``: they write where their parent writes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable

from streamrace.device import cuda
from streamrace.device.ranks.child import Send
from streamrace.device.ranks.launcher import launch
from streamrace.device.ranks.ports import free_port


def run(world: int, target: Callable[[int], None]) -> None:
    """Run ``target(rank)`` in ``world`` processes; gives when all are done.

    They have the environment that ``torchrun`` gives, and a GPU each, of which all are to be seen. Raises
    :class:`streamrace.device.ranks.RankFailed` for the first rank that ends badly; whatever happens, no process is
    left.
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
        gc.collect()  # so that the next time does not depend on who forked
        target(rank)

    for _ in launch(world, work):
        pass
