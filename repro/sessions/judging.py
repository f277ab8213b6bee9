"""The detectors of a session: those of any program, and those that know a framework."""

from __future__ import annotations

from detectors import registry
from detectors.base import Detector
from frameworks.deepspeed.exercised import SecondaryPartitions


def detectors() -> list[Detector]:
    """One of each, for one run."""
    return [make() for make in (*registry.DETECTORS, SecondaryPartitions)]
