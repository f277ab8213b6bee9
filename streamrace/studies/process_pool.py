"""Runs several dry runs in parallel, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from streamrace.process import sigstop
from streamrace.process.forks import forking
from streamrace.process.interrupts import ALONE, held, plainly
from streamrace.process.lifetime import belong
from streamrace.scenarios.base import ScenarioError

_BEHIND = 5  # nice(2): a third of the processor time of a process that is not nice

Item = TypeVar("Item")
Result = TypeVar("Result")
OnProgress = Callable[[int, int, str], None]  # number done, number in all, and the item done last


def quiet(done: int, of: int, what: str) -> None:
    """Ignore the progress."""


def cores() -> int:
    """Return the default number of parallel runs."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class ProcessPool:
    """A pool of worker processes that run in parallel with this process. A context manager; on exit, also by Ctrl-C, it
    ends at once and leaves no process, not even if this process is killed.

    The workers are forked when work first :meth:`begins <begin>`, so earlier imports (DeepSpeed: seconds) are shared.
    ``behind``: the workers get a lower priority than this process and its ranks.
    """

    def __init__(self, workers: int, *, behind: bool = False) -> None:
        self._others = {*multiprocessing.active_children()}
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(os.getpid(), behind, signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        )
        self._open: dict[Future[Any], Any] = {}  # values: the items of the futures
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._looks, self._killed, self._forked = sigstop.Looks(), False, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with held():  # else an interrupt here would leave the remaining workers running
            if self._open:
                for worker in self._workers():
                    worker.kill()
            self._pool.shutdown(cancel_futures=True)

    def begin(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        then: Callable[[Item, Result], None] = lambda item, result: None,
    ) -> None:
        """Run ``work`` on each item once a worker is free. ``then`` may begin more; it is called in another thread."""

        def ended(item: Item, future: Future[Result]) -> None:
            try:
                if not future.cancelled() and future.exception() is None:
                    then(item, future.result())
            finally:
                self._ended.put(future)

        with nullcontext() if self._forked else self._forking():
            for item in items:
                future = self._pool.submit(work, item)
                self._open[future] = item
                future.add_done_callback(partial(ended, item))

    @contextmanager
    def _forking(self) -> Iterator[None]:
        """Fork all workers at the first submission. SIGTERM and SIGHUP to a single worker stay blocked until it has
        removed the handlers that it inherits.
        """
        self._forked = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALONE)
        try:
            with forking():
                yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def done(self) -> Iterator[tuple[Any, Any]]:
        """Yield each item and its result as it completes, until all submitted work is done.

        Raises the work's exceptions, :class:`streamrace.scenarios.base.ScenarioError` when a worker dies or is stopped.
        """
        with self._told():
            while self._open:
                with suppress(Empty):
                    future = self._ended.get(timeout=sigstop.LOOK_S)
                    result = future.result()
                    yield self._open.pop(future), result
                self._end_stopped()

    def look(self) -> None:
        """Poll for failures without waiting: raises as :meth:`done` if some work has failed by now."""
        self._end_stopped()
        with self._told():
            for future in [one for one in [*self._open] if one.done()]:
                future.result()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool:
            how = "was stopped (SIGSTOP)" if self._killed else "died"
            raise ScenarioError(
                f"a worker {how} while it rehearsed (was memory short?): run it again, a study with --workers 1"
            ) from None

    def _end_stopped(self) -> None:
        workers = {worker.pid: worker for worker in self._workers() if worker.pid is not None}
        for process in self._looks.stopped(workers):
            self._killed = True
            workers[process].kill()

    def finish(self) -> None:
        """Wait for all submitted work. Raises as :meth:`done`."""
        for _ in self.done():
            pass

    def _workers(self) -> list[BaseProcess]:
        """Return the children of this process that the pool started.

        Kill a worker only by its own method: a thread of the pool reaps the workers, so a worker in this list may be
        gone, and its process id may belong to another process.
        """
        return [one for one in multiprocessing.active_children() if one not in self._others]


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Yield each item and the result of ``work`` as it completes. Workers share earlier imports (DeepSpeed: seconds).

    Raises the exceptions of ``work``, :class:`streamrace.scenarios.base.ScenarioError` when a worker dies or is
    stopped. However the iteration ends, also by Ctrl-C or by closing the generator, no process is left; nor if this
    process is killed.
    """
    with ProcessPool(min(workers or cores(), len(items) or 1)) as pool:
        pool.begin(work, items)
        yield from pool.done()


def _begin(parent: int, behind: bool, mask: set[signal.Signals | int]) -> None:
    """Initialise a worker. ``mask``: the signals that its parent blocks."""
    belong(parent)
    if behind:
        os.nice(_BEHIND)
    plainly()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
