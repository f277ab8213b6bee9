"""The detectors that read every trace. A new one is a line here, and whatever judges a trace has it.

The detectors that know a framework come with the framework (``repro/sessions/judging.py`` adds them).
"""

from __future__ import annotations

from collections.abc import Callable

from detectors.base import Detector
from detectors.confidence.exercise import IdleStreams, LoneGroups
from detectors.confidence.exports import Exports
from detectors.race_detector import RaceDetector
from detectors.values.coverage import Coverage

EXERCISE: list[Callable[[], Detector]] = [IdleStreams, LoneGroups]
"""What a clean verdict says nothing of."""
DETECTORS: list[Callable[[], Detector]] = [RaceDetector, Coverage, *EXERCISE, Exports]
