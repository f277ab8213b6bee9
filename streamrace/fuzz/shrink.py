"""Shrinks a failing timing as far as possible: nothing in it can be left out.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on
Software Engineering 28(2), 2002): ``ddmin`` tries ever smaller parts of the deviations and their complements, until
removing any single one makes the failure disappear. Then each amount is halved as often as the timing still fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from streamrace.replay.deviations import Jitter, Stretch

D = TypeVar("D", bound=Hashable)
"""A deviation: of a recorded run (``replay.deviations``), or of a live run (``device.timing``)."""

_SHORTEST_NS = 1000  # delays below a microsecond decide nothing


@dataclass(frozen=True)
class Shrunk(Generic[D]):
    """A shrunk timing. ``executions``: the number that it took.

    ``minimal``: it is known not to fail without any single one of ``deviations``.
    """

    deviations: tuple[D, ...]
    executions: int
    minimal: bool


class _Spent(Exception):
    """The budget has been used up."""


def identity(deviations: Sequence[Hashable]) -> Hashable:
    """Return a key that is equal for equal timings: the order of deviations makes no difference."""
    return frozenset(Counter(deviations).items())


def shrink(run: Callable[[Sequence[D]], bool], deviations: Sequence[D], *, budget: int = 200) -> Shrunk[D]:
    """Return the smallest failing timing found. ``run``: predicate that executes a timing, never the same one twice.

    Returns the timing reached after ``budget`` executions. Raises :class:`ValueError` if ``deviations`` do not fail.
    """
    return _Shrinking(run, tuple(deviations), budget).result()


class _Shrinking(Generic[D]):
    def __init__(self, run: Callable[[Sequence[D]], bool], deviations: tuple[D, ...], budget: int) -> None:
        self._run = run
        self._smallest = deviations
        self._budget = budget
        self._known: dict[Hashable, bool] = {}

    def result(self) -> Shrunk[D]:
        try:
            if not self._fails(self._smallest):
                raise ValueError("this timing does not fail: there is nothing to shrink")
            if self._fails(()):
                return self._shrunk()
            before = None
            while before != self._smallest:  # a smaller amount may make another deviation superfluous
                before = self._smallest
                self._fewest()
                self._least()
        except _Spent:
            pass
        return self._shrunk()

    def _shrunk(self) -> Shrunk[D]:
        now = self._smallest
        less = (identity(now[:place] + now[place + 1 :]) for place in range(len(now)))
        minimal = self._known.get(identity(now), False) and all(self._known.get(smaller) is False for smaller in less)
        return Shrunk(now, len(self._known), minimal)

    def _fails(self, deviations: tuple[D, ...]) -> bool:
        """Check whether these fail: executed once, then cached. Failing ones are kept, as only smaller ones follow."""
        key = identity(deviations)
        if key not in self._known:
            if len(self._known) >= self._budget:
                raise _Spent
            self._known[key] = self._run(deviations)
        if self._known[key]:
            self._smallest = deviations
        return self._known[key]

    def _fewest(self) -> None:
        """Remove deviations by the algorithm ``ddmin`` of the paper."""
        parts = 2
        while len(self._smallest) > 1:
            now = self._smallest
            bounds = [len(now) * part // parts for part in range(parts + 1)]
            cuts = list(pairwise(bounds))
            if any(self._fails(now[begin:end]) for begin, end in cuts):
                parts = 2
            elif any(self._fails(now[:begin] + now[end:]) for begin, end in cuts):
                parts = max(parts - 1, 2)
            elif parts < len(now):
                parts = min(2 * parts, len(now))
            else:
                return

    def _least(self) -> None:
        """Minimise the amount of each deviation, leaving the others unchanged."""
        for place in range(len(self._smallest)):
            now = self._smallest
            amounts = _halvings(now[place])

            def fails(times: int, place: int = place, amounts: Sequence[D] = amounts) -> bool:
                now = self._smallest
                return self._fails((*now[:place], amounts[times], *now[place + 1 :]))

            # Assumes that larger amounts fail too; else this still ends at a failing amount whose half does not fail.
            low, high = 0, len(amounts)
            while high - low > 1:
                middle = (low + high) // 2
                if fails(middle):
                    low = middle
                else:
                    high = middle


def _halvings(deviation: D) -> list[D]:
    """Return the deviation, half of it, a quarter, ... down to its smallest valid amount."""
    halvings = [deviation]
    while (half := _half(halvings[-1])) is not None:
        halvings.append(half)
    return halvings


def _half(deviation: Any) -> Any:
    match deviation:
        case Stretch(what, factor):
            return Stretch(what, factor // 2) if factor // 2 >= 2 else None
        case Jitter(percent, seed):
            return Jitter(percent // 2, seed) if percent // 2 >= 1 else None
        case _:  # a delay, of either kind
            return deviation._replace(ns=deviation.ns // 2) if deviation.ns // 2 >= _SHORTEST_NS else None
