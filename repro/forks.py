"""Forking a process that has already lived."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def out_of_sight() -> Iterator[None]:
    """What is there now is never looked at by the collectors of processes that are forked within.

    To look at it would copy all of it, for each fork. And garbage among it may not be destroyed there: threads do not
    survive a fork, and a process group of gloo that goes waits for its own. The parent's collector goes on as before.
    """
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
