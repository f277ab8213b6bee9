"""Lists the detectors that read every trace. A new detector is one line here.

The detectors that know a framework come with the framework (``repro/sessions/detector_set.py`` adds them).
"""

from __future__ import annotations

from collections.abc import Callable

from streamrace.detectors.base import Detector
from streamrace.detectors.confidence.exercise import IdleStreams, LoneGroups
from streamrace.detectors.confidence.exports import Exports
from streamrace.detectors.confidence.unrecorded import UnrecordedWork
from streamrace.detectors.grid.faults import KernelFaults
from streamrace.detectors.hang.detector import Hangs
from streamrace.detectors.race_detector import RaceDetector
from streamrace.detectors.values.coverage import Coverage
from streamrace.detectors.values.graph_memory import GraphMemoryUse
from streamrace.detectors.values.uninitialised import UnwrittenReads

EXERCISE: list[Callable[[], Detector]] = [IdleStreams, LoneGroups]
"""Detectors that report what a clean verdict does not cover."""
DETECTORS: list[Callable[[], Detector]] = [
    RaceDetector,
    Coverage,
    *EXERCISE,
    Exports,
    UnrecordedWork,
    UnwrittenReads,
    KernelFaults,
    GraphMemoryUse,
    Hangs,
]
