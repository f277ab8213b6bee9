"""Several dry runs side by side, in processes of their own."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from scenarios.base import ScenarioError
from simgpu.ranks import stopped
from simgpu.ranks.bound import belong
from simgpu.ranks.forks import forking
from simgpu.ranks.interrupts import held, plainly

Item = TypeVar("Item")
Result = TypeVar("Result")
OnProgress = Callable[[int, int, str], None]  # how many are done, of how many, and what was done last


def quiet(done: int, of: int, what: str) -> None:
    """Reports no progress."""


def cores() -> int:
    """How many runs go side by side by default."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """``work`` of each item, as it is done. What was imported before (DeepSpeed: seconds) is there in the workers.

    Raises what ``work`` raises, :class:`scenarios.base.ScenarioError` when a worker dies or is stopped. However it
    ends, also by Ctrl-C or being closed, it ends at once, and no process is left; nor where this process is killed.
    """
    others = {*multiprocessing.active_children()}
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(
        min(workers or cores(), len(items) or 1), mp_context=context, initializer=_begin, initargs=(os.getpid(),)
    )
    waiting: dict[Future[Result], Item] = {}
    looks, killed = stopped.Looks(), False
    done: set[Future[Result]] = set()
    try:
        with forking():  # the first submission forks all workers
            waiting.update({pool.submit(work, item): item for item in items})
        while len(done) < len(waiting):
            now, _ = wait(waiting.keys() - done, stopped.LOOK_S, FIRST_COMPLETED)
            done |= now
            for future in (one for one in waiting if one in now):
                yield waiting[future], future.result()
            for process in looks.stopped(_pids(others)):
                killed = True
                os.kill(process, signal.SIGKILL)
    except BrokenProcessPool:
        how = "was stopped (SIGSTOP)" if killed else "died"
        raise ScenarioError(
            f"a worker {how} while it rehearsed (was memory short?): run it again, a study with --workers 1"
        ) from None
    finally:
        with held():  # or what is left would be nobody's
            if len(done) < len(waiting):
                for process in _pids(others):
                    os.kill(process, signal.SIGKILL)
            pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """In a worker."""
    belong(parent)
    plainly()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes care of Ctrl-C


def _pids(others: Set[multiprocessing.process.BaseProcess]) -> list[int]:
    """Of the workers: this process's children but for ``others``."""
    return [one.pid for one in multiprocessing.active_children() if one not in others and one.pid is not None]


def together(todo: Mapping[Item, Callable[[], Result]]) -> dict[Item, Result]:
    """What each gives, by its name, side by side where they are several. Raises as :func:`side_by_side`."""
    if len(todo) < 2:
        return {name: work() for name, work in todo.items()}
    names = list(todo)
    return {names[at]: found for (at, _), found in side_by_side(_do, list(enumerate(todo.values())))}


def _do(numbered: tuple[int, Callable[[], Result]]) -> Result:
    return numbered[1]()
