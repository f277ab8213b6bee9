"""When each moment is, given what it waits for and what that costs; and which effects come in which order.

Native (``native/csrc/times.cpp``) where that is built; the same in Python is what it is held to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt

from streamrace.replay.engines import native
from streamrace.replay.native import engine

_Numbers = npt.NDArray[np.int64]


class Waiting:
    """``preds``: by node, what it waits for at once: nodes before it."""

    def __init__(self, preds: Sequence[tuple[int, ...]]) -> None:
        self._preds = preds
        self._at = np.fromiter(accumulate(map(len, preds), initial=0), dtype=np.int64)
        self._flat = np.fromiter(chain.from_iterable(preds), dtype=np.int32)
        few = [those if len(those) < 4 else () for those in preds]
        self._few = [[those[at] if at < len(those) else -1 for those in few] for at in range(3)]

    def times(self, costs: _Numbers, begin: int, before: _Numbers) -> _Numbers:
        """The time of each node; those before node ``begin`` stand in ``before``."""
        if not native():
            return self.in_python(costs, begin, before)
        made = before.copy()
        engine.times(self._at, self._flat, costs, begin, made)
        return made

    def in_python(self, costs: _Numbers, begin: int, before: _Numbers) -> _Numbers:
        """The same, whatever serves otherwise."""
        times: list[int] = before[:begin].tolist()
        add, preds = times.append, self._preds
        first, second, third = (those[begin:] for those in self._few)
        for one, two, three, cost in zip(
            first, second, third, costs[begin:].tolist(), strict=True
        ):  # max() costs three times as much
            if two < 0:
                if one >= 0:
                    add(times[one] + cost)
                else:
                    add(max([times[pred] for pred in preds[len(times)]], default=0) + cost)
                continue
            latest, other = times[one], times[two]
            if other > latest:
                latest = other
            if three >= 0:
                other = times[three]
                if other > latest:
                    latest = other
            add(latest + cost)
        return np.array(times, dtype=np.int64)


def ordered(when: _Numbers, nearly: _Numbers) -> _Numbers:
    """Places by time, and then by place. ``nearly``: all of them, in an order that is nearly right at best."""
    if not native():
        return np.argsort(when, kind="stable")
    order = nearly.copy()
    engine.sort(when, order)
    return order
