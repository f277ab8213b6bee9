"""Computes the time of each moment from its predecessors and costs, and sorts effects by time.

Native (``native/csrc/times.cpp``) if built; the Python version is the specification.
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
    """Computes times. ``preds``: by node, its direct predecessors, which have lower numbers."""

    def __init__(self, preds: Sequence[tuple[int, ...]]) -> None:
        self._preds = preds
        self._at = np.fromiter(accumulate(map(len, preds), initial=0), dtype=np.int64)
        self._flat = np.fromiter(chain.from_iterable(preds), dtype=np.int32)
        few = [node_preds if len(node_preds) < 4 else () for node_preds in preds]
        self._few = [[node_preds[at] if at < len(node_preds) else -1 for node_preds in few] for at in range(3)]

    def times(self, costs: _Numbers, begin: int, before: _Numbers) -> _Numbers:
        """Return the time of each node; times before node ``begin`` are taken from ``before``."""
        if not native():
            return self.in_python(costs, begin, before)
        result = before.copy()
        engine.times(self._at, self._flat, costs, begin, result)
        return result

    def in_python(self, costs: _Numbers, begin: int, before: _Numbers) -> _Numbers:
        """Compute :meth:`times` in Python, even if the native engine is available."""
        times: list[int] = before[:begin].tolist()
        add, preds = times.append, self._preds
        first, second, third = (column[begin:] for column in self._few)
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
    """Return the places sorted by time, then by place. ``nearly``: all places, ideally nearly sorted."""
    if not native():
        return np.argsort(when, kind="stable")
    order = nearly.copy()
    engine.sort(when, order)
    return order
