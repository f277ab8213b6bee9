"""Computes which values of unpublished machine figures would make our step times equal the reported ones.

Each :class:`UnknownFigure` is a figure that no paper gives. A row's :class:`Curve` has the step's time at several
values of it, all else as the hardware's facts have it. So each row implies the value that it needs; and the rows of a
cluster show whether one value does for all: each is predicted with the value that the *others* need
(:func:`predicted`). A figure that explains one row alone explains nothing.

Plausible ranges and their sources are in ``facts.toml``, section unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from papers.studies import FACTS
from papers.studies.sensitivity import Variation
from streamrace.device.hardware.facts import facts

EXPLAINED = 0.10  # relative error of a step's time, above which a row is off
AGREES = 0.25  # the same, of a row with the value that the others need
Values = npt.NDArray[np.float64]


class UnknownFigure(NamedTuple):
    """A figure that no paper gives. ``title``: in a few words; ``form``: the format of a value; ``low`` to ``high``:
    the plausible range, from ``source``.

    ``values``: at which steps are timed, from far below the plausible range to far above; ``vary``: maps a value and
    the nominal network (Gbit/s) to a variation; ``inverse``: a step's time goes with the inverse of the value;
    ``alone``: nothing else is varied; if False, nothing is hidden either.
    """

    name: str
    title: str
    form: str
    values: tuple[float, ...]
    vary: Callable[[float, float], Variation]
    inverse: bool = False
    alone: bool = True

    @property
    def key(self) -> str:
        """Return its name, prefixed with ``serial`` where nothing is hidden."""
        return self.name if self.alone else f"serial {self.name}"

    @property
    def low(self) -> float:
        return float(facts(file=FACTS)[f"unknowns.{self.name}"].value[0])

    @property
    def high(self) -> float:
        return float(facts(file=FACTS)[f"unknowns.{self.name}"].value[1])

    @property
    def source(self) -> str:
        return facts(file=FACTS)[f"unknowns.{self.name}"].source

    def plausible(self, value: float) -> bool:
        return self.low <= value <= self.high

    def say(self, value: float) -> str:
        return self.form.format(value)


_ALONE = (
    UnknownFigure("network", "network, part of its rate", "{:.2f}", (0.1, 0.2, 0.35, 0.6, 1.0, 2.0),
            lambda value, nominal: Variation(network=value * nominal), inverse=True),
    UnknownFigure("kernels", "kernels' times, factor", "{:.2f}", (0.3, 0.6, 1.0, 1.6, 2.5, 4.0),
            lambda value, nominal: Variation(network=nominal, kernels=value)),
    UnknownFigure("collective", "more for a collective, us", "{:.0f} us", (0.0, 300.0, 1000.0, 10000.0),
            lambda value, nominal: Variation(network=nominal, collective_us=value)),
    UnknownFigure("launch", "launch, us", "{:.0f} us", (1.0, 5.0, 30.0, 200.0),
            lambda value, nominal: Variation(network=nominal, launch_us=value)),
    UnknownFigure("parameter", "more for a parameter, ps", "{:.0f} ps", (0.0, 1000.0),
            lambda value, nominal: Variation(network=nominal, parameter_ps=value)),
    UnknownFigure("hidden", "part that is hidden", "{:.0%}", (0.0, 1.0),
            lambda value, nominal: Variation(network=nominal, hidden=value)),
)  # fmt: skip


def _serial(of: UnknownFigure) -> UnknownFigure:
    def vary(value: float, nominal: float) -> Variation:
        return of.vary(value, nominal)._replace(hidden=0.0)

    return of._replace(title=f"none hidden; {of.title}", vary=vary, alone=False)


UNKNOWNS = (*_ALONE, *(_serial(one) for one in _ALONE if one.name != "hidden"))
"""Each figure alone, and each with communication and computation one after the other."""


@dataclass(frozen=True)
class Curve:
    """Seconds of a step by the value of an unknown, linear between the timed values (or between their inverses)."""

    unknown: UnknownFigure
    seconds: tuple[float, ...]

    def at(self, value: float) -> float:
        return float(self.at_all(np.array([value]))[0])

    def at_all(self, values: Values) -> Values:
        """Evaluate :meth:`at` for each of ``values``."""
        places = self._places
        order = np.argsort(places)
        wanted = 1 / values if self.unknown.inverse else values
        found: Values = np.interp(wanted, places[order], np.array(self.seconds)[order])
        return found

    def value(self, seconds: float) -> float:
        """Return the value at which a step takes ``seconds``, interpolated in the order of the times; NaN: none."""
        places, times = self._places, np.array(self.seconds)
        if not times.min() <= seconds <= times.max():
            return math.nan
        order = np.argsort(times, kind="stable")
        place = float(np.interp(seconds, times[order], places[order]))
        return 1 / place if self.unknown.inverse else place

    def needed(self, seconds: float) -> float:
        """Return :meth:`value`; if NaN, the timed value nearest in time, where it is within :data:`EXPLAINED`."""
        exact, times = self.value(seconds), np.array(self.seconds)
        if not math.isnan(exact):
            return exact
        nearest = int(np.argmin(np.abs(times - seconds)))
        return self.unknown.values[nearest] if abs(times[nearest] / seconds - 1) <= EXPLAINED else math.nan

    @property
    def _places(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([self._place(value) for value in self.unknown.values])

    def _place(self, value: float) -> float:
        return 1 / value if self.unknown.inverse else value


class Explanation(NamedTuple):
    """An unknown as explanation of a row. ``value``: the value of ``unknown`` that the row needs, NaN: none;
    ``plausible``: whether it is plausible; ``of_others``: the value that the other rows need, NaN: no others;
    ``seconds``: the row's, with that value.
    """

    unknown: UnknownFigure
    value: float
    plausible: bool
    of_others: float
    seconds: float


def explanations(curves: Sequence[Mapping[str, Curve]], theirs: Sequence[float]) -> list[list[Explanation]]:
    """Return the explanations by row of a cluster and by unknown. ``theirs``: seconds of each row."""
    found: list[list[Explanation]] = [[] for _ in theirs]
    for unknown in UNKNOWNS:
        of_rows = [of[unknown.key] for of in curves]
        needed = [of.needed(seconds) for of, seconds in zip(of_rows, theirs, strict=True)]
        for at, of in enumerate(of_rows):
            others = predicted(of_rows, theirs, at)
            found[at].append(
                Explanation(
                    unknown,
                    needed[at],
                    not math.isnan(needed[at]) and unknown.plausible(needed[at]),
                    others,
                    math.nan if math.isnan(others) else of.at(others),
                )
            )
    return found


def predicted(curves: Sequence[Curve], theirs: Sequence[float], at: int) -> float:
    """Return the value at which all rows but the one at ``at`` have the least mean absolute relative error.

    NaN where there are no others. The median of the values that they need would be an alternative, but it ignores rows
    that no value explains.
    """
    others = [place for place in range(len(curves)) if place != at]
    if not others:
        return math.nan
    # Between these values the errors are linear, so the least sum is at one of them.
    exact = [curves[place].value(theirs[place]) for place in others]
    tried = np.array([*(value for value in exact if not math.isnan(value)), *curves[at].unknown.values])
    errors = [np.abs(curves[place].at_all(tried) / theirs[place] - 1) for place in others]
    return float(tried[int(np.argmin(np.mean(errors, axis=0)))])


def calibrating(found: Sequence[Sequence[Explanation]], theirs: Sequence[float]) -> dict[str, float]:
    """Return, by unknown, the mean absolute error of all rows, each predicted by the others (NaN: some cannot be)."""
    errors = {}
    for at, unknown in enumerate(UNKNOWNS):
        each = [abs(of[at].seconds / seconds - 1) for of, seconds in zip(found, theirs, strict=True)]
        errors[unknown.key] = sum(each) / len(each)
    return errors


def best(found: Sequence[Explanation], errors: Mapping[str, float], theirs: float) -> Explanation | None:
    """Return the single unknown that explains a row: of those that do, the best for its cluster; or None.

    An unknown explains the row at a plausible value, if the value that the *others* need predicts it within
    :data:`AGREES` of ``theirs``, or there are no others. Unknowns with nothing hidden are the second choice.
    """
    able = [
        one for one in found if one.plausible and (math.isnan(one.of_others) or abs(one.seconds / theirs - 1) <= AGREES)
    ]
    return min(able, key=lambda one: (not one.unknown.alone, _known(errors[one.unknown.key])), default=None)


def _known(error: float) -> float:
    return math.inf if math.isnan(error) else error
