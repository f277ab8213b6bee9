"""Detectors: they read a trace (:mod:`repro.trace`), and know nothing of who wrote it."""

from detectors.divergence import Divergence, Values, compare
from detectors.files import find_races
from detectors.happens_before import HappensBefore
from detectors.races import AccessKind, Moment, Name, Occurrence, Race, RaceKind, Side, site

__all__ = [
    "AccessKind",
    "Divergence",
    "HappensBefore",
    "Moment",
    "Name",
    "Occurrence",
    "Race",
    "RaceKind",
    "Side",
    "Values",
    "compare",
    "find_races",
    "site",
]
