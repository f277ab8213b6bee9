"""Forking a process that has already lived."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from repro.interrupts import held


@contextmanager
def forking() -> Iterator[None]:
    """To fork within. Ctrl-C waits, as what is raised in a hook of ``os.fork`` is lost; and what is there now is never
    looked at by the collectors of the forks.

    To look at it would copy all of it, for each fork. And garbage among it may not be destroyed there: threads do not
    survive a fork, and a process group of gloo that goes waits for its own. The parent's collector goes on as before.
    """
    frozen = gc.get_freeze_count()
    with held():
        gc.freeze()
        try:
            yield
        finally:
            if not frozen:
                gc.unfreeze()
