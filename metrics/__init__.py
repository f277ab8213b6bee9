"""Accounts: what a run costs, read from its trace: memory, traffic, and where the time goes.

Each account takes one rank's records as they come, ``feed(records)``, and gives its result when all are there,
``result()``. A trace that stands for all ranks (one of a dry run) is fed like any other.
"""

from __future__ import annotations

from metrics.busy import Busy, BusyAccount, GroupTime, StepTime
from metrics.ends import EndsAccount
from metrics.memory import Excess, MemoryAccount, MemoryUse, Moment, PhasePeak
from metrics.traffic import Flow, Traffic, TrafficAccount

__all__ = [
    "Busy",
    "BusyAccount",
    "EndsAccount",
    "Excess",
    "Flow",
    "GroupTime",
    "MemoryAccount",
    "MemoryUse",
    "Moment",
    "PhasePeak",
    "StepTime",
    "Traffic",
    "TrafficAccount",
]
