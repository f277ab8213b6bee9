"""Fits two unknown figures at once, for rows that no single one explains; the second is the time per parameter.

The second is added to a step independently of everything else (:class:`papers.studies.sensitivity.Variation`), so a
pair needs no timing of its own. Two figures can explain more than one can, and so prove less: they are searched only
within their plausible ranges, and a row counts as explained only where the values that the *others* need predict it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from papers.studies.unknowns import AGREES, UNKNOWNS, Curve, UnknownFigure, Values

PARAMETER = next(one for one in UNKNOWNS if one.key == "parameter")
FIRST = tuple(one for one in UNKNOWNS if one.name != PARAMETER.name)
"""The unknowns that are paired with :data:`PARAMETER`."""
_FEWEST = 2  # other rows, at least: two figures fit any fewer
_STEPS = 61  # values of each that are tried, from the least plausible to the most


class TwoFigures(NamedTuple):
    """A pair of values. ``value``: the value of ``first`` that a row needs; ``parameter_ps``: that of
    :data:`PARAMETER`; NaN where no pair does. Of several pairs, the nearest to the others' pair. ``seconds``: the row's
    step time with the pair that the other rows need.
    """

    first: UnknownFigure
    value: float
    parameter_ps: float
    seconds: float


def two_figures(curves: Sequence[Mapping[str, Curve]], theirs: Sequence[float]) -> list[list[TwoFigures]]:
    """Return the pairs by row of a cluster, in the order of :data:`FIRST`. ``theirs``: seconds of each row."""
    found: list[list[TwoFigures]] = [[] for _ in theirs]
    if len(theirs) <= _FEWEST:
        return found
    for first in FIRST:
        values, more = _between(first), _between(PARAMETER)
        took = [_seconds(of, first, values, more) for of in curves]
        errors = np.array([np.abs(one / seconds - 1) for one, seconds in zip(took, theirs, strict=True)])
        for at, seconds in enumerate(theirs):
            of_others = np.delete(errors, at, axis=0).mean(axis=0)
            place = np.unravel_index(int(np.argmin(of_others)), of_others.shape)
            value, parameter_ps = _needed(took[at], seconds, values, more, (int(place[0]), int(place[1])))
            found[at].append(TwoFigures(first, value, parameter_ps, float(took[at][place])))
    return found


def best_two(found: Sequence[Sequence[TwoFigures]], theirs: Sequence[float], at: int) -> TwoFigures | None:
    """Return the pair that explains the row at ``at``: of those that do, the best for its whole cluster; or None."""
    able = [
        place
        for place, one in enumerate(found[at])
        if not math.isnan(one.value) and abs(one.seconds / theirs[at] - 1) <= AGREES
    ]

    def error(place: int) -> float:
        return sum(abs(row[place].seconds / seconds - 1) for row, seconds in zip(found, theirs, strict=True))

    return found[at][min(able, key=error)] if able else None


def _between(unknown: UnknownFigure) -> Values:
    low, high = unknown.low, unknown.high
    found: Values = 1 / np.linspace(1 / low, 1 / high, _STEPS) if unknown.inverse else np.linspace(low, high, _STEPS)
    return found


def _seconds(of: Mapping[str, Curve], first: UnknownFigure, values: Values, more: Values) -> Values:
    """Return the seconds of a step, by the value of each: shape (values, more)."""
    alone, parameter = of[first.key].at_all(values), of[PARAMETER.key]
    beside: Values = parameter.at_all(more) - parameter.at(0.0)
    found: Values = alone[:, None] + beside[None, :]
    return found


def _needed(took: Values, seconds: float, values: Values, more: Values, others: tuple[int, int]) -> tuple[float, float]:
    """Return the pair with which a step takes ``seconds`` and which is nearest to ``others``, a pair of indices."""
    slope = (took[:, -1] - took[:, 0]) / (more[-1] - more[0])
    needed = more[0] + (seconds - took[:, 0]) / slope
    able = (needed >= more[0]) & (needed <= more[-1])
    if not able.any():
        return math.nan, math.nan
    places = (needed - more[0]) / (more[-1] - more[0]) * (_STEPS - 1)
    away = np.hypot(np.arange(_STEPS) - others[0], places - others[1])
    nearest = int(np.argmin(np.where(able, away, np.inf)))
    return float(values[nearest]), float(needed[nearest])
