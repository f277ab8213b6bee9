"""Creates the detectors of a session: those for any program, and those that know a framework."""

from __future__ import annotations

from streamrace.detectors import registry
from streamrace.detectors.base import Detector
from streamrace.detectors.race_detector import Noticed, RaceDetector
from streamrace.frameworks.deepspeed.secondary_reads import SecondaryPartitions


def detectors(noticed: Noticed | None = None) -> list[Detector]:
    """Create one of each detector, for one run. ``noticed``: called for each occurrence of a race."""
    makes = (*registry.DETECTORS, SecondaryPartitions)
    return [RaceDetector(noticed=noticed) if make is RaceDetector else make() for make in makes]
