"""The detectors of a session: those of any program, and those that know a framework."""

from __future__ import annotations

from streamrace.detectors import registry
from streamrace.detectors.base import Detector
from streamrace.frameworks.deepspeed.exercised import SecondaryPartitions


def detectors() -> list[Detector]:
    """One of each, for one run."""
    return [make() for make in (*registry.DETECTORS, SecondaryPartitions)]
