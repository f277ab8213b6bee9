"""Forks a process whose heap is already large."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from streamrace.process.interrupts import held

_OFTEN = (700, 10, 10)  # Python's defaults
_SELDOM = (50_000, 20, 20)
_for_good: list[bool] = []  # frozen objects stay frozen: to count them takes 50 ms once DeepSpeed is imported


def relax_gc() -> None:
    """Make garbage collection rare from here on and exclude all present objects, in a process that imports much or
    reads traces.

    Imports and trace readers create objects by the hundred thousand and no reference cycles; at Python's default
    thresholds the collector took a fourth of the time of importing DeepSpeed or of judging a run.
    """
    gc.freeze()
    _for_good[:] = [True]
    gc.set_threshold(*_SELDOM)


def as_often_as_python() -> None:
    """Restore Python's thresholds in a fork, so that the next collection does not depend on the parent."""
    gc.set_threshold(*_OFTEN)
    gc.collect()  # few objects are left to traverse


@contextmanager
def forking() -> Iterator[None]:
    """Provide the context in which to fork: Ctrl-C is deferred, as an exception raised in a hook of ``os.fork`` is
    lost, and the forks' collectors ignore all present objects.

    Traversing these would copy their pages in each fork, and their garbage must not be destroyed there: threads do not
    survive a fork, and a process group of gloo waits for its threads. The parent's collector continues as before.
    """
    frozen = _for_good or gc.get_freeze_count()
    with held():
        gc.freeze()
        try:
            yield
        finally:
            if not frozen:
                gc.unfreeze()
