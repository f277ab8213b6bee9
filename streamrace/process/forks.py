"""Forking a process that has already lived."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from streamrace.process.interrupts import held

_OFTEN = (700, 10, 10)  # Python's own
_SELDOM = (50_000, 20, 20)
_for_good: list[bool] = []  # what is frozen in this process stays so: to count it takes 50 ms where DeepSpeed is


def seldom() -> None:
    """Look for garbage seldom from here on, and never among what is there now: for a process that imports much,
    or reads traces.

    What they make comes by the hundred thousand and is in no circle; as often as Python looks by itself, a fourth of
    the time in which DeepSpeed is imported, or a run is judged, went into that.
    """
    gc.freeze()
    _for_good[:] = [True]
    gc.set_threshold(*_SELDOM)


def as_often_as_python() -> None:
    """In a fork: when the next search comes does not depend on who forked."""
    gc.set_threshold(*_OFTEN)
    gc.collect()  # it looks at hardly anything


@contextmanager
def forking() -> Iterator[None]:
    """To fork within. Ctrl-C waits, as what is raised in a hook of ``os.fork`` is lost; and what is there now is never
    looked at by the collectors of the forks.

    To look at it would copy all of it, for each fork. And garbage among it may not be destroyed there: threads do not
    survive a fork, and a process group of gloo that goes waits for its own. The parent's collector goes on as before.
    """
    frozen = _for_good or gc.get_freeze_count()
    with held():
        gc.freeze()
        try:
            yield
        finally:
            if not frozen:
                gc.unfreeze()
