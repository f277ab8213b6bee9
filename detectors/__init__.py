"""Detectors: they read a trace (:mod:`repro.trace`), and know nothing of who wrote it."""

from detectors.coverage import Coverage, Uncovered
from detectors.divergence import Divergence, Values, compare
from detectors.files import find_races
from detectors.happens_before import HappensBefore
from detectors.races import AccessKind, Moment, Name, Occurrence, Race, RaceKind, Side, site
from detectors.stale import Stale, find_stale

__all__ = [
    "AccessKind",
    "Coverage",
    "Divergence",
    "HappensBefore",
    "Moment",
    "Name",
    "Occurrence",
    "Race",
    "RaceKind",
    "Side",
    "Stale",
    "Uncovered",
    "Values",
    "compare",
    "find_races",
    "find_stale",
    "site",
]
