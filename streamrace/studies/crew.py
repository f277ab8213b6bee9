"""Several dry runs side by side, in processes of their own."""

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

_BEHIND = 5  # nice(2): a third of the time that one has who is not

Item = TypeVar("Item")
Result = TypeVar("Result")
OnProgress = Callable[[int, int, str], None]  # how many are done, of how many, and what was done last


def quiet(done: int, of: int, what: str) -> None:
    """Reports no progress."""


def cores() -> int:
    """How many runs go side by side by default."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


class Crew:
    """Workers that run beside this process, which goes on. To be entered; however it is left, also by Ctrl-C, it ends
    at once, and no process is left; nor where this process is killed.

    They are forked when work first :meth:`begins <begin>`, so what was imported before (DeepSpeed: seconds) is there.
    ``behind``: where they share a processor with this process or its ranks, those go first.
    """

    def __init__(self, workers: int, *, behind: bool = False) -> None:
        self._others = {*multiprocessing.active_children()}
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(os.getpid(), behind, signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        )
        self._open: dict[Future[Any], Any] = {}  # by the names of what they do
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._looks, self._killed, self._forked = sigstop.Looks(), False, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with held():  # or what is left would be nobody's
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
        """``work`` of each item, as soon as a worker is free. ``then`` may begin more; another thread calls it."""

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
        """The first submission forks all workers. What is sent to one alone waits until it has put off the handlers
        that it inherits.
        """
        self._forked = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALONE)
        try:
            with forking():
                yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def done(self) -> Iterator[tuple[Any, Any]]:
        """What was begun, up to its end, and what it gave, as it is done.

        Raises what the work raises, :class:`streamrace.scenarios.base.ScenarioError` when a worker dies or is stopped.
        """
        with self._told():
            while self._open:
                with suppress(Empty):
                    future = self._ended.get(timeout=sigstop.LOOK_S)
                    result = future.result()
                    yield self._open.pop(future), result
                self._end_stopped()

    def look(self) -> None:
        """For who does something else meanwhile: raises as :meth:`done` where something has failed by now."""
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
        """Wait for what was begun. Raises as :meth:`done`."""
        for _ in self.done():
            pass

    def _workers(self) -> list[BaseProcess]:
        """This process's children but for those that were there before.

        To be killed by their own method: a thread of the pool takes note of their ends, so one that was there may be
        gone, and its number another's.
        """
        return [one for one in multiprocessing.active_children() if one not in self._others]


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """``work`` of each item, as it is done. What was imported before (DeepSpeed: seconds) is there in the workers.

    Raises what ``work`` raises, :class:`streamrace.scenarios.base.ScenarioError` when a worker dies or is stopped.
    However it ends, also by Ctrl-C or being closed, it ends at once, and no process is left; nor where this process is
    killed.
    """
    with Crew(min(workers or cores(), len(items) or 1)) as crew:
        crew.begin(work, items)
        yield from crew.done()


def _begin(parent: int, behind: bool, mask: set[signal.Signals | int]) -> None:
    """In a worker. ``mask``: the signals that its parent does not take."""
    belong(parent)
    if behind:
        os.nice(_BEHIND)
    plainly()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes care of Ctrl-C
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
