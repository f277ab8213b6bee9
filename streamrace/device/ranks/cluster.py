"""Runs ranks that report to their parent while they run: for a scenario, a dry run, a recording."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from streamrace.device.ranks import RankFailed as RankFailed
from streamrace.device.ranks.launcher import launch
from streamrace.process.child import Send, print_to
from streamrace.process.forks import as_often_as_python
from streamrace.process.messages import M


@dataclass(frozen=True)
class Rank:
    """A rank's own description. ``report`` sends a message to the parent, of one of the types that it expects."""

    rank: int
    world: int
    store: Path
    report: Send

    def join(self, backend: str, *, patience_s: float = 120.0, store: Any = None) -> None:
        """Create torch's default process group. In a dry run this rank is alone in it, but for those in ``store``."""
        from torch import distributed

        from streamrace.device import work

        if store is None and work.valueless():
            store = distributed.HashStore()
        store = store or distributed.FileStore(str(self.store), self.world)
        patience = timedelta(seconds=patience_s)
        distributed.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=patience)


def _ignore(rank: int, message: tuple[Any, ...]) -> None:
    pass


def run_ranks(
    world: int,
    target: Callable[[Rank], None],
    *,
    folder: Path,
    kinds: Sequence[type[M]] = (),
    receive: Callable[[int, M], None] = _ignore,
    silence_s: float = 300.0,
    started: Callable[[list[int]], None] | None = None,
) -> None:
    """Run ``target`` in ``world`` processes until all are done.

    ``receive`` gets each message, which is of one of ``kinds``, with its rank. ``folder`` takes the ranks' output
    (``rank0.log``) and the store by which they find each other. ``started`` gets the process ids.

    Raise :class:`RankFailed` for the first rank that fails, or if no rank reports anything for ``silence_s``
    seconds. No process is left in any case, KeyboardInterrupt included.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"store-{os.getpid()}-{time.monotonic_ns()}"

    def log(rank: int) -> Path:
        return folder / f"rank{rank}.log"

    def work(rank: int, send: Send) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        if sys.platform == "linux":
            # Often more ranks than cores, which wake each other all the time: let each finish its time slice.
            # Measured, 4 ranks on 2 cores: a third fewer switches, a sixth less time.
            with suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        # gloo needs a name that resolves; for ranks of one machine, loopback suffices
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
        print_to(log(rank))
        as_often_as_python()
        target(Rank(rank, world, store, send))

    try:
        with closing(launch(range(world), work, kinds, silence_s=silence_s, log=log, started=started)) as messages:
            for rank, message in messages:
                receive(rank, message)
    finally:
        store.unlink(missing_ok=True)
