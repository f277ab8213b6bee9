"""Detects processes that are stopped (SIGSTOP): waiting for a stopped process blocks for ever, so waiters poll.

A process stopped by a debugger has another state (``t``) and is ignored.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

LOOK_S = 2.0  # between two polls


class Looks:
    """Polls the states of processes, at most once in :data:`LOOK_S`."""

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._at = time.monotonic()

    def stopped(self, processes: Iterable[int]) -> list[int]:
        """Return the processes that are stopped, and were at the previous poll.

        A shell stops and resumes a job as a whole (Ctrl-Z), and the process that polls may be the first to resume.
        """
        if time.monotonic() - self._at < LOOK_S:
            return []
        self._at = time.monotonic()
        stopped = {process for process in processes if _state(process) == "T"}
        still_stopped, self._before = sorted(stopped & self._before), stopped
        return still_stopped


def readable(file: Any, process: int) -> None:
    """Wait until ``process`` writes to this pipe or ends; kill ``process`` if it is stopped."""
    looks = Looks()
    while not wait([file], LOOK_S):
        for stopped in looks.stopped([process]):
            os.kill(stopped, signal.SIGKILL)


def _state(process: int) -> str:
    """Return the process's state, field 3 of ``stat`` (proc(5)); empty if the process does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
