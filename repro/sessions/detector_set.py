"""Creates the detectors of a session: those for any program, and those that know a framework."""

from __future__ import annotations

from streamrace.detectors import registry
from streamrace.detectors.base import Detector
from streamrace.frameworks.deepspeed.secondary_reads import SecondaryPartitions


def detectors() -> list[Detector]:
    """Create one of each detector, for one run."""
    return [make() for make in (*registry.DETECTORS, SecondaryPartitions)]
