"""The ranks of a program that is written for ``torchrun``: they write where their parent writes."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable

from simgpu import cuda
from simgpu.ranks.child import Send
from simgpu.ranks.launcher import launch

_FIRST_PORT, _PORTS, _APART = 12_000, 20_000, 7
_asked = itertools.count()


def run(world: int, target: Callable[[int], None]) -> None:
    """Run ``target(rank)`` in ``world`` processes; gives when all are done.

    They have the environment that ``torchrun`` gives, and a GPU each, of which all are to be seen. Raises
    :class:`simgpu.ranks.RankFailed` for the first rank that ends badly; whatever happens, no process is left.
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


def free_port() -> int:
    """One on which nobody listens, and which the system gives to no connection between the asking and the use.

    The system's own choice (port 0) lies where any connection that is opened meanwhile may get it. These lie below that
    range, and whoever asks begins at another place: commands that start at once do not get the same.
    """
    first = (os.getpid() * _APART + next(_asked)) % _PORTS
    for port in (_FIRST_PORT + (first + more) % _PORTS for more in range(_PORTS)):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
            try:
                one.bind(("", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free for the ranks to meet on")
