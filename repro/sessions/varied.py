"""Runs each rank of a program in an interpreter of its own, so that what differs between machines differs here.

Ranks that are forks of one process have the same hash seed, and their objects the same addresses, so the order of their
sets agrees by luck. Here each rank has its own hash seed, addresses as the system gives them, and a host of its own
speed: answers of queries differ, and with them what a program decides by these.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

from streamrace.device.ranks.ports import free_port
from streamrace.device.scripts import WrongUse
from streamrace.process import lifetime

_FASTEST, _SLOWEST = 1, 4  # factors of a host's time


def run(ranks: int | None) -> int:
    """Start this process's command once for each rank, as a launcher does; return the exit status of rank 0.

    Raises :class:`WrongUse` for fewer than two ranks.
    """
    if ranks is None or ranks < 2:
        raise WrongUse("--vary compares what ranks do: say --ranks N, for two or more")
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command = lifetime.command(lifetime.module("streamrace", *sys.argv[1:]))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            own = {"RANK": rank, "LOCAL_RANK": rank, "PYTHONHASHSEED": rank + 1}
            variables = {name: str(value) for name, value in (shared | own).items()}
            started.append(subprocess.Popen(command, env=os.environ | variables))
        return started[0].wait()
    finally:
        for process in started[1:]:  # they end when rank 0 has judged
            with suppress(KeyboardInterrupt):
                process.wait()


def timing(token: str, ranks: int) -> str:
    """Return the timing in which each rank's host has a speed of its own, and else that of ``token``."""
    factors = {rank: _FASTEST + rank % _SLOWEST for rank in range(ranks)}
    slower = "".join(f",x{factor}:host:{rank}" for rank, factor in factors.items() if factor > _FASTEST)
    return f"{token or 't1'}{slower}"
