"""Starts the ranks of a program, one forked process each, and ends what is left when one fails.

Ranks are forked, so that torch is imported once. They write where their parent writes, as under ``torchrun``.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from simgpu import cuda
from simgpu.ranks import RankFailed
from simgpu.ranks.forks import forking

_PR_SET_PDEATHSIG = 1
_GRACE_S = 0.5  # a rank that lost a peer complains at once; the one that was lost is the one to be named


def run(world: int, target: Callable[[int], None]) -> None:
    """Run ``target(rank)`` in ``world`` processes; gives when all are done.

    They have the environment that ``torchrun`` gives, and a GPU each, of which all are to be seen. Raises
    :class:`RankFailed` for the first rank that ends badly; whatever happens, no process is left.
    """
    port = _free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    ranks: dict[int, int] = {}  # by process
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with forking():
            for rank in range(world):
                parent = os.getpid()
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGINT, interrupt)
                    _rank(rank, world, port, parent, target)
                ranks[child] = rank
        _attend(ranks)
    finally:
        for process in ranks:
            os.kill(process, signal.SIGKILL)
        for process in ranks:
            os.waitpid(process, 0)


def _attend(ranks: dict[int, int]) -> None:
    first: RankFailed | None = None
    until = 0.0
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG) if first else os.wait()
        if process in ranks:
            rank = ranks.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                name = signal.Signals(-code).name
                raise RankFailed(rank, f"was killed by {name}", 128 - code)  # a kill is never what another's end does
            if code and first is None:
                first, until = RankFailed(rank, f"ended with exit status {code}", code), time.monotonic() + _GRACE_S
        elif first is not None:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
    if first is not None:
        raise first


def _rank(rank: int, world: int, port: int, parent: int, target: Callable[[int], None]) -> NoReturn:
    """A rank's process: never returns into what it was forked from."""
    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
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
        status = 0
    except SystemExit as leaving:
        status = _status(leaving)
    except BaseException:  # it is told here, and the parent sees the status
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
