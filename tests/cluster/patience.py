"""How long a parent waits for its ranks in vain: what it asked for, not what a clock says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from streamrace.device.ranks import launcher


@contextmanager
def in_vain() -> Iterator[list[float]]:
    """Meanwhile the seconds of each wait of :mod:`streamrace.device.ranks.launcher` that ended with nothing heard.

    A parent that hears of each failure as it comes has none, but the moment of grace after a rank that raised.
    """
    waited: list[float] = []
    original = launcher.heard

    def heard(objects: Any, running: Any, seconds: float | None) -> list[Any]:
        ready = original(objects, running, seconds)
        if not ready:
            waited.append(float("inf") if seconds is None else seconds)
        return ready

    with mock.patch.object(launcher, "heard", heard):
        yield waited
