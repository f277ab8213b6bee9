"""Starts the ranks, one process each, collects what they say, and ends what hangs.

Ranks are forked, so that what was imported before (torch, DeepSpeed, transformers: seconds) is there
at once. They speak to the parent in msgpack over a pipe of their own.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import msgpack

from simgpu.ranks.forks import as_often_as_python, forking
from simgpu.ranks.interrupts import held

_PR_SET_PDEATHSIG = 1
_GRACE_S = 0.5  # the ranks that lost a peer complain at once, and may be heard before its death is


class RankFailed(Exception):
    """A rank died, raised, or was not heard of any more. Says which and why."""

    def __init__(self, rank: int, reason: str, log: Path | None) -> None:
        self.rank, self.reason, self.log = rank, reason, log
        where = f" (its output: {log})" if log is not None else ""
        super().__init__(f"rank {rank} {reason}{where}")


@dataclass(frozen=True)
class Rank:
    """What a rank knows of itself."""

    rank: int
    world: int
    pipe: Connection
    store: Path

    def say(self, message: dict[str, Any]) -> None:
        """Tell the parent. The message must be msgpack's: numbers, text, lists, dicts."""
        self.pipe.send_bytes(msgpack.packb(message))


def run_ranks(
    world: int,
    target: Callable[[Rank], None],
    *,
    folder: Path,
    hear: Callable[[int, dict[str, Any]], None],
    silence_s: float = 300.0,
    started: Callable[[list[int]], None] | None = None,
) -> None:
    """Run ``target`` in ``world`` processes until all are done.

    ``hear`` gets each message with its rank. ``folder`` takes the ranks' output (``rank0.log``) and the
    store by which they find each other. ``started`` gets the process ids.

    Raises :class:`RankFailed` for the first rank that ends badly, or when no rank says anything for
    ``silence_s`` seconds. Whatever happens, KeyboardInterrupt included, no process is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"store-{os.getpid()}-{time.monotonic_ns()}"
    context = multiprocessing.get_context("fork")
    pipes: dict[Any, int] = {}
    processes: list[BaseProcess] = []
    process: BaseProcess
    try:
        with forking():  # once: it counts what is frozen, and that takes 50 ms where DeepSpeed is
            for rank in range(world):
                ours, theirs = context.Pipe(duplex=False)
                me = Rank(rank, world, theirs, store)
                process = context.Process(target=_rank_main, args=(me, target, _log(folder, rank)), name=f"rank {rank}")
                process.start()
                theirs.close()
                pipes[ours] = rank
                processes.append(process)
        if started is not None:
            started([process.pid or 0 for process in processes])
        _attend(processes, pipes, hear, folder, silence_s)
    finally:
        with held():  # or what is left would be nobody's
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()
            for pipe in pipes:
                pipe.close()
            store.unlink(missing_ok=True)


def _attend(
    processes: list[BaseProcess],
    pipes: dict[Any, int],
    hear: Callable[[int, dict[str, Any]], None],
    folder: Path,
    silence_s: float,
) -> None:
    alive = {process.sentinel: rank for rank, process in enumerate(processes)}
    listening = dict(pipes)
    complaint: RankFailed | None = None  # of a rank that raised: it counts if no other was killed
    until = math.inf
    while alive:
        timeout = silence_s if complaint is None else max(0.0, until - time.monotonic())
        ready = wait([*listening, *alive], timeout=timeout)
        if complaint is not None and time.monotonic() >= until:
            raise complaint
        if not ready:
            rank = min(alive.values())
            others = f"and {len(alive) - 1} others " if len(alive) > 1 else ""
            raise RankFailed(rank, f"{others}did not say anything for {silence_s:g} s", _log(folder, rank))
        failed: list[RankFailed | None] = []
        for pipe in [item for item in ready if item in listening]:
            failed.append(_listen(pipe, listening, hear, folder))  # type: ignore[arg-type]
        for sentinel in [item for item in ready if item in alive]:
            rank = alive.pop(sentinel)
            process = processes[rank]
            process.join()
            for pipe in [pipe for pipe, owner in listening.items() if owner == rank]:
                failed.append(_listen(pipe, listening, hear, folder))  # its last words
                listening.pop(pipe, None)
            exitcode = process.exitcode or 0
            if exitcode < 0:
                raise RankFailed(rank, _reason(exitcode), _log(folder, rank))
            if exitcode:
                failed.append(RankFailed(rank, _reason(exitcode), _log(folder, rank)))
        if complaint is None and any(failed):
            complaint = next(one for one in failed if one is not None)
            until = time.monotonic() + _GRACE_S
    if complaint is not None:
        raise complaint


def _listen(
    pipe: Connection, listening: dict[Any, int], hear: Callable[[int, dict[str, Any]], None], folder: Path
) -> RankFailed | None:
    """Hear what a rank says; gives its failure if it told of one."""
    rank = listening[pipe]
    failed: RankFailed | None = None
    try:
        while pipe.poll():
            message = msgpack.unpackb(pipe.recv_bytes(), strict_map_key=False)
            if "failed" in message:
                failed = RankFailed(rank, f"raised {message['failed']}", _log(folder, rank))
            else:
                hear(rank, message)
    except (EOFError, ConnectionResetError):
        del listening[pipe]
    return failed


def _reason(exitcode: int) -> str:
    if exitcode < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit status {exitcode}"


def _rank_main(me: Rank, target: Callable[[Rank], None], log: Path) -> NoReturn:
    """A rank's process: never returns into what it was forked from."""
    # the parent takes care of Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Ranks are often more than cores and wake each other all the time: let each do its turn to the end. Measured,
        # 4 ranks on 2 cores: a third fewer switches, a sixth less time.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()
    as_often_as_python()
    status = 0
    try:
        target(me)
    except BaseException as error:  # whatever it is, the parent must hear of it
        status = 1
        traceback.print_exc()
        text = str(error).strip().splitlines()
        with suppress(OSError):
            me.say({"failed": f"{type(error).__name__}: {text[0] if text else ''}"})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"
