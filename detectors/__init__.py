"""Detectors: they read a trace (:mod:`simgpu.trace`), or hook into a running training program (:mod:`detectors.live`).

What hooks into training needs torch, and is only imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from detectors.base import Detector, Uncovered, Unexercised, Unseen
from detectors.files import find_races, read
from detectors.order.races import AccessKind, Moment, Name, Occurrence, Race, RaceKind, Side, site
from detectors.race_detector import RaceDetector
from detectors.values.coverage import Coverage
from detectors.values.divergence import Divergence, Values, compare
from detectors.values.stale import Stale, find_stale

if TYPE_CHECKING:
    from detectors.live.actions import BadValue, BadValueWarning
    from detectors.live.board import WatchFailed
    from detectors.live.engines import WatchError
    from detectors.live.finding import Cause, Finding, Kind
    from detectors.live.watch import NanWatch

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
        return getattr(import_module(f"detectors.live.{_LIVE[name]}"), name)
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
    "Kind",
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
    "Unseen",
    "Values",
    "WatchError",
    "WatchFailed",
    "compare",
    "find_races",
    "find_stale",
    "read",
    "site",
]
