"""Processes that a program starts itself (``torch.multiprocessing.spawn``, ``multiprocessing``): each has a GPU.

A fresh interpreter (the ways ``spawn`` and ``forkserver``) is started by a line of Python, before which ours is put:
the device has to be there before torch is. How many GPUs are to be seen, ``mp.spawn(nprocs=N)`` says; else there is one
more for each process that was started. What these processes do on their GPUs is in no trace: where the program is
traced, the first use of one is refused, and the program fails by that, whatever it makes of it.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from streamrace import checkout

_TRACED = "STREAMRACE_TRACED"  # of a traced program: the file that says that such a process used a GPU
_COUNT = "STREAMRACE_GPUS"  # how many are to be seen by the processes that it starts
UNJUDGED = (
    "streamrace: a process that the program started itself uses a GPU, and what it does there would not be judged: let "
    "--ranks N, or torchrun, start the ranks, each of which calls once what torch.multiprocessing.spawn calls, with "
    "int(os.environ['RANK'])"
)
_BEGIN = (  # the path's first entry is the working folder's, as in process/lifetime.py
    "import sys; sys.path[:not sys.flags.safe_path] = [{place!r}]; "
    "from streamrace.device import launch; launch.start(devices={devices}, deferred={deferred}); "
    "from streamrace.device.ranks.spawned import begin; begin(); "
)
_STARTS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")


class _Child:
    """What multiprocessing has a fork do before it calls the program's function, and what it does at its end."""

    fresh = False

    def begin(self) -> None:
        from streamrace.device import cuda
        from streamrace.device.library import functions

        place = multiprocessing.current_process()._identity  # among the processes that its parent started, from 1
        if place and not functions().used() and not os.environ.get(_TRACED):
            cuda.see(max(place[-1], _visible()))
        if self.fresh:
            self.end_well()

    def end_well(self) -> None:
        util.Finalize(None, self.end, exitpriority=100)

    def end(self) -> None:
        """Other ranks may wait for what it gave to its GPU."""
        if collectives := sys.modules.get("streamrace.device.collectives"):
            collectives.leave(done=sys.exc_info()[0] is None)


_child = _Child()
_started = [0]


def install() -> None:
    """Let what this process starts have GPUs. Called once, when torch is there."""
    import torch.multiprocessing as mp

    utility: Any = util
    plain = utility.spawnv_passfds

    def start(path: Any, words: Any, files: Any) -> Any:
        place = next((at for at, one in enumerate(words) if isinstance(one, str) and one.startswith(_STARTS)), None)
        if place is None:
            return plain(path, words, files)
        words = list(words)
        _started[0] += 1
        devices, deferred = max(_started[0], _visible()), os.environ.get("CUDA_LAUNCH_BLOCKING") != "1"
        begin = _BEGIN.format(place=str(checkout.IMPORTED_FROM), devices=devices, deferred=deferred)
        words[place] = begin + words[place]
        return plain(path, words, files)

    utility.spawnv_passfds = start
    module: Any = sys.modules["torch.multiprocessing.spawn"]
    processes = module.start_processes
    signature = inspect.signature(processes)

    @functools.wraps(processes)
    def start_processes(*arguments: Any, **how: Any) -> Any:
        given = signature.bind(*arguments, **how)
        given.apply_defaults()
        with _seeing(given.arguments["nprocs"]):
            return processes(*arguments, **how)

    util.register_after_fork(_child, _Child.begin)
    os.register_at_fork(after_in_child=_forked)
    package: Any = mp
    package.start_processes = module.start_processes = start_processes


@contextmanager
def _seeing(count: int) -> Iterator[None]:
    before = os.environ.get(_COUNT, "")
    os.environ[_COUNT] = str(max(count, _visible()))
    try:
        yield
    finally:
        if before:
            os.environ[_COUNT] = before
        else:
            del os.environ[_COUNT]


def _visible() -> int:
    """How many are to be seen, here or by who is started next."""
    import torch

    return max(torch.cuda.device_count(), int(os.environ.get(_COUNT, "0")))


def begin() -> None:
    """Of a fresh process, which has its GPU by now."""
    _child.fresh = True  # what the server of forkserver forks ends as such a one does
    _child.end_well()
    _forked()


def _forked() -> None:
    """Of a process that a program started: it has no GPU where the program is traced."""
    from streamrace.device import cuda
    from streamrace.device.library import functions

    if os.environ.get(_TRACED) and not functions().used():
        cuda.begin_with(_refuse)


def _refuse() -> NoReturn:
    Path(os.environ[_TRACED]).touch()
    raise RuntimeError(UNJUDGED)


@contextmanager
def watched(trace: Path) -> Iterator[None]:
    """Inside, the program is traced into this file. Raises RuntimeError where processes that it started used a GPU."""
    used = trace.with_name(f"{trace.name}.spawned")
    before = os.environ.get(_TRACED)
    os.environ[_TRACED] = str(used.absolute())
    try:
        yield
        if used.exists():
            raise RuntimeError(UNJUDGED)
    finally:
        used.unlink(missing_ok=True)
        if before is None:
            del os.environ[_TRACED]
        else:
            os.environ[_TRACED] = before
