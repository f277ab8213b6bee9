"""Several dry runs side by side, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from scenarios.base import ScenarioError
from simgpu.ranks.forks import forking

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

    Raises what ``work`` raises, :class:`scenarios.base.ScenarioError` when a worker dies.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(workers or cores(), len(items) or 1), mp_context=context) as pool:
        waiting: dict[Future[Result], Item] = {}
        try:
            with forking():  # the first submission forks all workers
                waiting.update({pool.submit(work, item): item for item in items})
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BrokenProcessPool:
            raise ScenarioError(
                "a worker died while it rehearsed (was memory short?): run the study again with --workers 1"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def together(todo: Mapping[Item, Callable[[], Result]]) -> dict[Item, Result]:
    """What each gives, by its name, side by side where they are several. Raises as :func:`side_by_side`."""
    if len(todo) < 2:
        return {name: work() for name, work in todo.items()}
    names = list(todo)
    return {names[at]: found for (at, _), found in side_by_side(_do, list(enumerate(todo.values())))}


def _do(numbered: tuple[int, Callable[[], Result]]) -> Result:
    return numbered[1]()
