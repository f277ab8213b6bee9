"""Processes that are stopped (SIGSTOP): whoever waits for one waits for ever, so who waits looks now and then.

A debugger's stop is another state (``t``), and is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import wait
from pathlib import Path

LOOK_S = 2.0  # between two looks


class Looks:
    """Looks at processes, as often as it is asked to, but not more often than each :data:`LOOK_S`."""

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._at = time.monotonic()

    def stopped(self, processes: Iterable[int]) -> list[int]:
        """Those that are stopped, and were at the look before.

        A shell stops a job as a whole (Ctrl-Z) and lets it go on as a whole: who looks may be the first that goes on.
        """
        if time.monotonic() - self._at < LOOK_S:
            return []
        self._at = time.monotonic()
        now = {process for process in processes if _state(process) == "T"}
        found, self._before = sorted(now & self._before), now
        return found


def readable(file: int, process: int) -> None:
    """Wait for what ``process`` writes to this pipe, or for its end; where it is stopped, it is killed."""
    looks = Looks()
    while not wait([file], LOOK_S):
        for one in looks.stopped([process]):
            os.kill(one, signal.SIGKILL)


def _state(process: int) -> str:
    """proc(5): field 3 of ``stat``. Empty: there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
