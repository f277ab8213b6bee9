"""Matches races with places as a user writes them: ``file.py:function`` or ``file.py:line``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from streamrace.detectors.order.races import Race, Side, site
from streamrace.trace.records import Frame


def is_there(place: str, frames: Iterable[Frame]) -> bool:
    """Check whether one of ``frames`` is at ``place``: file.py:function or file.py:line."""
    file, _, position = place.rpartition(":")

    def is_it(frame: Frame) -> bool:
        function = frame.function.partition(" ")[0]  # the suffix marks the backward pass of a call on that line
        return frame.file.rpartition("/")[2] == file and position in (
            str(frame.line),
            function,
            function.rpartition(".")[2],
        )

    return any(map(is_it, frames))


def meant(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside the standard library (``contextlib``), which a user would name."""
    own = (f for f in frames if f.file.partition("/")[0].removesuffix(".py") not in sys.stdlib_module_names)
    return next(own, site(tuple(frames)))


def at(race: Race, place: str, *sides: Side) -> bool:
    """Check whether one of the race's accesses is at ``place`` or called from it. ``sides``: check only these."""
    return any(is_there(place, side.stack) for side in sides or (race.first, race.second))


def between(race: Race, places: Sequence[str]) -> bool:
    """Check whether the race lies between these two places, one access at each."""
    if len(places) != 2:
        return False
    first, second = ({place for place in places if at(race, place, side)} for side in (race.first, race.second))
    return bool(first and second) and len(first | second) == len(set(places))
