"""Gives a GPU to each process that a program starts itself (``torch.multiprocessing.spawn``, ``multiprocessing``).

A fresh interpreter (methods ``spawn`` and ``forkserver``) is started by a line of Python, which gets a prefix: the
device must be installed before torch is imported. ``mp.spawn(nprocs=N)`` sets the number of visible GPUs; otherwise
there is one more for each process started. The work of these processes on their GPUs is in no trace: if the program is
traced, the first use of such a GPU is refused, and the program fails by that even if it handles the error.
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

_TRACED = "STREAMRACE_TRACED"  # in a traced program: the file whose existence shows that such a process used a GPU
_COUNT = "STREAMRACE_GPUS"  # number of GPUs visible to the processes that it starts
UNJUDGED = (
    "streamrace: a process that the program started itself uses a GPU, and what it does there would not be judged: let "
    "--ranks N, or torchrun, start the ranks, each of which calls once what torch.multiprocessing.spawn calls, with "
    "int(os.environ['RANK'])"
)
_BEGIN = (  # the path's first entry is the working folder, as in process/lifetime.py
    "import sys; sys.path[:not sys.flags.safe_path] = [{place!r}]; "
    "from streamrace.device import launch; launch.start(devices={devices}, deferred={deferred}); "
    "from streamrace.device.ranks.spawn import begin; begin(); "
)
_STARTS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")


class _Child:
    """Hooks of multiprocessing in a fork: before the program's function is called, and at the fork's end."""

    fresh = False

    def begin(self) -> None:
        from streamrace.device import cuda
        from streamrace.device.library import functions

        place = multiprocessing.current_process()._identity  # number among its parent's children, from 1
        if place and not functions().used() and not os.environ.get(_TRACED):
            cuda.see(max(place[-1], _visible()))
        if self.fresh:
            self.end_well()

    def end_well(self) -> None:
        util.Finalize(None, self.end, exitpriority=100)

    def end(self) -> None:
        """Finish the process's work on its GPU: other ranks may wait for it."""
        if collectives := sys.modules.get("streamrace.device.collectives"):
            collectives.leave(done=sys.exc_info()[0] is None)


_child = _Child()
_started = [0]


def install() -> None:
    """Give GPUs to the processes that this process starts. Called once, after torch is imported."""
    import torch.multiprocessing as mp

    utility: Any = util
    plain = utility.spawnv_passfds

    def start(path: Any, words: Any, files: Any) -> Any:
        place = next((at for at, word in enumerate(words) if isinstance(word, str) and word.startswith(_STARTS)), None)
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
    def start_processes(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        with _seeing(bound.arguments["nprocs"]):
            return processes(*arguments, **keywords)

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
    """Return the number of visible GPUs, here or in the process started next."""
    import torch

    return max(torch.cuda.device_count(), int(os.environ.get(_COUNT, "0")))


def begin() -> None:
    """Prepare a fresh process, which has its GPU already."""
    _child.fresh = True  # forks of the fork server must end like a fresh process
    _child.end_well()
    _forked()


def _forked() -> None:
    """Prepare a process that a program started: refuse it the GPU if the program is traced."""
    from streamrace.device import cuda
    from streamrace.device.library import functions

    if os.environ.get(_TRACED) and not functions().used():
        cuda.begin_with(_refuse)


def _refuse() -> NoReturn:
    Path(os.environ[_TRACED]).touch()
    raise RuntimeError(UNJUDGED)


@contextmanager
def watched(trace: Path) -> Iterator[None]:
    """Trace the program into this file in the ``with`` block. Raise RuntimeError if child processes used a GPU."""
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
