"""Tells which order a trace of torch's profiler has, for a program of which nothing else was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from streamrace.device.scripts import WrongUse
from streamrace.kineto import file, order
from streamrace.reports.data.findings import STATUSES, Verdict
from streamrace.reports.screen import order as screen
from streamrace.reports.screen.console import Terminal
from streamrace.trace.records import TraceError


def judge(path: Path, given: Sequence[str]) -> NoReturn:
    """Print the order, and exit as of an unknown verdict. Raise :class:`WrongUse` if any options were given."""
    if given:
        raise WrongUse(
            f"{given[0]} goes with recordings: a profiler's trace has no findings, and makes no run's folder"
        )
    trace = file.read(path)
    if not trace.of(*file.WORK, "cpu_op"):
        raise TraceError(f"{path} is no trace of torch's profiler: it has neither operators nor kernels")
    screen.show(Terminal(), trace, order.read(trace))
    raise SystemExit(STATUSES[Verdict.UNKNOWN])
