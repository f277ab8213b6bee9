"""Runs several dry runs in parallel, each in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, Self, TypeVar, cast

from streamrace.process.child import Child, Send, heard
from streamrace.process.forks import forking
from streamrace.process.interrupts import held
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


class _Worker:
    """A fork that does the work it is sent, one piece after the other. ``behind``: with a lower priority."""

    def __init__(self, *, behind: bool) -> None:
        self._connection, other = Pipe()
        with other:
            self.child = Child(partial(_serve, self._connection, other, behind))

    def run(self, work: Callable[[Item], Result], item: Item) -> Result:
        """Return the result of the work. Raises its exception, :class:`ScenarioError` if the worker dies or is stopped.

        Only :meth:`close` reaps the worker, so until then no other process gets its id.
        """
        try:
            self._connection.send((work, item))
            heard([self._connection], [self.child], None)
            result, error = self._connection.recv()
        except (EOFError, ConnectionError):
            how = "was stopped (SIGSTOP)" if self.child.stopped else "died"
            raise ScenarioError(
                f"a worker {how} while it rehearsed (was memory short?): run it again, a study with --workers 1"
            ) from None
        if error is not None:
            raise error
        return cast(Result, result)

    def close(self) -> None:
        self.child.close()
        self._connection.close()


class ProcessPool:
    """A pool of worker processes that run in parallel with this process. A context manager; on exit, also by Ctrl-C, it
    ends at once and leaves no process, not even if this process is killed.

    The workers are forked when work first :meth:`begins <begin>`, so earlier imports (DeepSpeed: seconds) are shared.
    ``behind``: the workers get a lower priority than this process and its ranks.
    """

    def __init__(self, workers: int, *, behind: bool = False) -> None:
        self._count, self._behind = workers, behind
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers)  # each waits for one worker at a time
        self._open: dict[Future[Any], Any] = {}  # values: the items of the futures
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with held():  # else an interrupt here would leave the remaining workers running
            for worker in self._workers:
                worker.child.kill()
            self._threads.shutdown(cancel_futures=True)
            for worker in self._workers:
                worker.close()

    def begin(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        then: Callable[[Item, Result], None] = lambda item, result: None,
    ) -> None:
        """Run ``work`` on each item once a worker is free. ``then`` may begin more; it is called in another thread."""

        def run(item: Item) -> Result:
            worker = self._idle.get()
            try:
                result = worker.run(work, item)
            finally:
                self._idle.put(worker)
            then(item, result)
            return result

        if not self._workers:
            with forking():
                for _ in range(self._count):
                    self._workers.append(_Worker(behind=self._behind))
                    self._idle.put(self._workers[-1])
        for item in items:
            future = self._threads.submit(run, item)
            self._open[future] = item
            future.add_done_callback(self._ended.put)

    def done(self) -> Iterator[tuple[Any, Any]]:
        """Yield each item and its result as it completes, until all submitted work is done.

        Raises the work's exceptions, :class:`streamrace.scenarios.base.ScenarioError` when a worker dies or is stopped.
        """
        while self._open:
            future = self._ended.get()
            result = future.result()
            yield self._open.pop(future), result

    def look(self) -> None:
        """Poll for failures without waiting: raises as :meth:`done` if some work has failed by now."""
        for future in [future for future in [*self._open] if future.done()]:
            future.result()

    def finish(self) -> None:
        """Wait for all submitted work. Raises as :meth:`done`."""
        for _ in self.done():
            pass


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


def _serve(others: Connection, requests: Connection, behind: bool, _: Send) -> None:
    """Work in the fork, until it is ended. ``others``: the end of its connection that it inherits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    others.close()
    if behind:
        os.nice(_BEHIND)
    while True:
        work, item = requests.recv()
        result: Any = None
        raised: BaseException | None = None
        try:
            result = work(item)
        except BaseException as error:
            error.add_note(traceback.format_exc())  # else only the parent's part of it would be shown
            raised = error
        sys.stdout.flush()
        requests.send((result, raised))
