"""Measures the shadow of unwritten memory: its time for an operation, and its growth with the trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from statistics import median

from benchmarks.detector import Trace, handed_on, synthetic
from benchmarks.figures import Figure
from streamrace.detectors.values.uninitialised import UnwrittenReads

LIMIT_US = 5.0
GROWTH = 1.5  # times
ROUNDS = 3
FEW, MANY = 10_000, 100_000


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the time of an operation in each trace, and its growth in a long one."""
    traces: list[tuple[Trace, str, float | None]] = [
        (synthetic, "an operation", LIMIT_US),
        (handed_on, "written in place in strides, in memory that is handed on: an operation", None),
    ]
    found = []
    for trace, what, limit in traces:
        rounds = []
        for round_ in range(1, ROUNDS + 1):
            say(f"unwritten: {what}, round {round_} of {ROUNDS}")
            rounds.append((_fed(trace, FEW), _fed(trace, MANY)))
        ratios = [many / few for few, many in rounds]
        note = f"median of {ROUNDS} rounds: {min(ratios):.2f} to {max(ratios):.2f}"
        found += [
            Figure("unwritten", f"{what} among {MANY:,}", median(many for _, many in rounds), "us", limit),
            Figure("unwritten", f"{what} among {MANY:,} against {FEW:,}", median(ratios), "times", GROWTH, note),
        ]
    return found


def _fed(trace: Trace, ops: int) -> float:
    """Return the microseconds of processor time per launch, its share of the other (pre-built) records included."""
    detector, spent, records = UnwrittenReads(), 0.0, trace(ops)
    while batch := list(islice(records, 2000)):
        began = time.process_time()
        detector.feed(0, batch)
        spent += time.process_time() - began
    return spent / ops * 1e6
