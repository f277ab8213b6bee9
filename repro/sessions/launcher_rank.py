"""Runs one rank of a launcher: ``torchrun --nproc-per-node 4 -m streamrace check train.py``.

Each rank records into the same run folder, created by rank 0, and reports its end there; rank 0 judges once all have
ended. The other ranks wait for that: a launcher ends all ranks as soon as one fails, also the rank that judges. No
network and no store are needed: the ranks of a simulated run are processes of one machine.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from streamrace.device.scripts import WrongUse
from streamrace.process.sigstop import Looks
from streamrace.repro.sessions import folders
from streamrace.repro.sessions.child import ProgramEnd

_POLL_S = 0.05
_FOLDER_S = 60.0  # limit for rank 0 to create the folder


class Launched(NamedTuple):
    """A launcher's rank. ``key``: equal on all ranks of a start, and unique to it; ``began``: the launcher's start."""

    rank: int
    world: int
    key: str
    began: datetime


def launcher_context(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return the launcher's settings for this process; None without a launcher, or if it starts a single rank.

    Raises :class:`WrongUse` if its ranks are on several machines.
    """
    world = int(environment.get("WORLD_SIZE", "1"))
    if world < 2:
        return None
    if int(environment.get("LOCAL_WORLD_SIZE", world)) != world:
        raise WrongUse("the ranks of a simulated run are processes of one machine: start all of them here")
    launcher, began = os.getppid(), _began(os.getppid())
    again = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Launched(int(environment["RANK"]), world, f"{launcher}-{began.timestamp():.2f}-{again}", began)


def join(paths: Sequence[Path], me: Launched) -> Path:
    """Wait for the one of ``paths`` that rank 0 creates for this start. Raises :class:`WrongUse` on a timeout."""
    until = time.monotonic() + _FOLDER_S
    while True:
        for path in paths:
            if folders.key_of(path) == me.key:
                return path
        if time.monotonic() > until:
            raise WrongUse(f"rank 0 has not made the run folder {paths[0]}: see its output")
        time.sleep(_POLL_S)


def report_exit(path: Path, me: Launched, ended: ProgramEnd) -> None:
    """Report how this rank ended."""
    folders.put(folders.of_rank(path, me.rank), ended._asdict())


def register_rank(path: Path, me: Launched) -> None:
    """Register this rank's process, so that waiting ranks can check whether it still runs."""
    folders.put(folders.of_rank(path, me.rank).with_suffix(".pid"), {"pid": os.getpid()})


def failed(path: Path, me: Launched) -> bool:
    """Check whether another rank has failed."""
    others = (_ended(path, rank) for rank in range(me.world) if rank != me.rank)
    return any(ended is not None and ended.status for ended in others)


def all_ended(path: Path, me: Launched) -> dict[int, ProgramEnd]:
    """Wait for all ranks and return how they ended. A rank that is gone without a report was killed.

    A stopped rank is killed when this process exits: its launcher would wait for it.
    """
    ended: dict[int, ProgramEnd] = {}
    looks = [Looks() for _ in range(me.world)]
    while len(ended) < me.world:
        for rank in {*range(me.world)} - {*ended}:
            end = _ended(path, rank)
            if end is None and _gone(path, rank):
                end = _ended(path, rank) or ProgramEnd(137, "it was killed")
            for process in looks[rank].stopped(_process(path, rank)):
                end = ProgramEnd(128 + signal.SIGSTOP, "it was stopped (SIGSTOP)")
                atexit.register(_kill, process)
            if end is not None:
                ended[rank] = end
        time.sleep(_POLL_S)
    return ended


def wait_for_verdict(path: Path, me: Launched) -> None:
    """Wait until rank 0 has judged, is gone, or is stopped. The folder may have moved by then."""
    looks = Looks()
    while not (
        (path / "findings.json").exists()
        or folders.key_of(path) != me.key
        or _gone(path, 0)
        or looks.stopped(_process(path, 0))
    ):
        time.sleep(_POLL_S)


def _ended(path: Path, rank: int) -> ProgramEnd | None:
    try:
        return ProgramEnd(**json.loads(folders.of_rank(path, rank).read_text(encoding="utf-8")))
    except OSError:
        return None


def _gone(path: Path, rank: int) -> bool:
    """Check whether the rank's process has ended; False before it has begun."""
    return any(not os.path.exists(f"/proc/{process}") for process in _process(path, rank))


def _process(path: Path, rank: int) -> list[int]:
    """Return the rank's process id; empty before it has begun."""
    try:
        return [int(json.loads(folders.of_rank(path, rank).with_suffix(".pid").read_text(encoding="utf-8"))["pid"])]
    except OSError:
        return []


def _kill(process: int) -> None:
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)


def _began(process: int) -> datetime:
    """Return the start time of a process (proc(5): field 22 of ``stat``, in clock ticks since boot)."""
    stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    ticks = int(stat.rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return datetime.fromtimestamp(booted + ticks / os.sysconf("SC_CLK_TCK"))
