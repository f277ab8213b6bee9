"""Detectors: they read a trace (:mod:`streamrace.trace`) or hook into a running training
(:mod:`streamrace.detectors.live`).

The detectors that hook into training need torch, and are imported only on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamrace.detectors.base import (
    Detector,
    GraphMemory,
    Uncovered,
    Unexercised,
    Uninitialised,
    Unseen,
    UnwrittenRead,
)
from streamrace.detectors.files import find_races, read
from streamrace.detectors.hangs import Hang, MayHang
from streamrace.detectors.kernel_defects import KernelDefect
from streamrace.detectors.order.races import AccessKind, Moment, Name, Occurrence, Race, RaceKind, Side, site
from streamrace.detectors.race_detector import RaceDetector
from streamrace.detectors.values.coverage import Coverage
from streamrace.detectors.values.divergence import Divergence, Values, compare
from streamrace.detectors.values.stale import Stale, find_stale

if not __name__.startswith("streamrace."):  # else each class would exist twice, unequal to the first
    raise ImportError("import streamrace.detectors: the folder detectors of the checkout is a part of that package")

if TYPE_CHECKING:
    from streamrace.detectors.live.actions import BadValue, BadValueWarning
    from streamrace.detectors.live.board import WatchFailed
    from streamrace.detectors.live.engines import WatchError
    from streamrace.detectors.live.finding import Cause, Finding, Kind
    from streamrace.detectors.live.watch import NanWatch

_LIVE = {
    "BadValue": "actions",
    "BadValueWarning": "actions",
    "Cause": "finding",
    "Finding": "finding",
    "Kind": "finding",
    "NanWatch": "watch",
    "WatchError": "engines",
    "WatchFailed": "board",
}


def __getattr__(name: str) -> Any:
    if name in _LIVE:
        return getattr(import_module(f"streamrace.detectors.live.{_LIVE[name]}"), name)
    raise AttributeError(f"module 'detectors' has no attribute '{name}'")


__all__ = [
    "AccessKind",
    "BadValue",
    "BadValueWarning",
    "Cause",
    "Coverage",
    "Detector",
    "Divergence",
    "Finding",
    "GraphMemory",
    "Hang",
    "KernelDefect",
    "Kind",
    "MayHang",
    "Moment",
    "Name",
    "NanWatch",
    "Occurrence",
    "Race",
    "RaceDetector",
    "RaceKind",
    "Side",
    "Stale",
    "Uncovered",
    "Unexercised",
    "Uninitialised",
    "Unseen",
    "UnwrittenRead",
    "Values",
    "WatchError",
    "WatchFailed",
    "compare",
    "find_races",
    "find_stale",
    "read",
    "site",
]
