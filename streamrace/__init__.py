"""Reproduces and finds stream races in sharded LLM training, and proves that a fix cures them.

The command ``streamrace`` covers most uses. Programs and tests import from this module:

* :class:`NanWatch`, in a training program: the first bad value, and where it came from;
* :func:`watch`, in a test marked ``stream_race``: a value that must not depend on timing;
* :func:`check_program` and :func:`check_collectives`, in tests of whole programs;
* :func:`recording`, around a part of a program on a real GPU: a recording for ``streamrace judge``;
* :func:`stream_timings`, in property tests;
* :class:`RaceDetector`, :func:`find_races` and :class:`Race`: the detectors, on a trace.

Importing the package imports nothing else: each name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrace.detectors.files import find_races
    from streamrace.detectors.live.watch import NanWatch
    from streamrace.detectors.order.races import Race
    from streamrace.detectors.race_detector import RaceDetector
    from streamrace.fuzz.strategy import stream_timings
    from streamrace.fuzz.testing.programs import check_collectives, check_program
    from streamrace.fuzz.watched_values import watch
    from streamrace.recorder.launch import recording

__all__ = [
    "NanWatch",
    "Race",
    "RaceDetector",
    "check_collectives",
    "check_program",
    "find_races",
    "recording",
    "stream_timings",
    "watch",
]

_MODULES = {
    "NanWatch": "streamrace.detectors.live.watch",
    "Race": "streamrace.detectors.order.races",
    "RaceDetector": "streamrace.detectors.race_detector",
    "check_collectives": "streamrace.fuzz.testing.programs",
    "check_program": "streamrace.fuzz.testing.programs",
    "find_races": "streamrace.detectors.files",
    "recording": "streamrace.recorder.launch",
    "stream_timings": "streamrace.fuzz.strategy",
    "watch": "streamrace.fuzz.watched_values",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamrace' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
