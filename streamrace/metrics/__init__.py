"""Metrics: the cost of a run, read from its trace: memory, traffic, and where the time goes.

Each metric takes one rank's records as they come, ``feed(records)``, and returns its result after the last one,
``result()``. A trace that stands for all ranks (of a dry run) is fed like any other.
"""

from __future__ import annotations

from streamrace.metrics.busy import Busy, BusyMetrics, GroupTime, StepTime
from streamrace.metrics.memory import Excess, MemoryMetrics, MemoryMoment, MemoryUse, PhasePeak
from streamrace.metrics.step_ends import EndMetrics
from streamrace.metrics.traffic import Flow, Traffic, TrafficMetrics

__all__ = [
    "Busy",
    "BusyMetrics",
    "EndMetrics",
    "Excess",
    "Flow",
    "GroupTime",
    "MemoryMetrics",
    "MemoryMoment",
    "MemoryUse",
    "PhasePeak",
    "StepTime",
    "Traffic",
    "TrafficMetrics",
]
