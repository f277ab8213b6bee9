"""Detectors: they read a trace (:mod:`repro.trace`), and know nothing of who wrote it."""

from detectors.files import find_races
from detectors.happens_before import HappensBefore
from detectors.races import AccessKind, Moment, Name, Occurrence, Race, RaceKind, Side, site

__all__ = [
    "AccessKind",
    "HappensBefore",
    "Moment",
    "Name",
    "Occurrence",
    "Race",
    "RaceKind",
    "Side",
    "find_races",
    "site",
]
