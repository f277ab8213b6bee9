"""Which parameters the bytes of a block belong to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from detectors.order.races import Name
from simgpu.trace import Collective, Label, Launch


class Labels:
    """The labels of one block. They are many and asked for rarely, so adding is what has to be cheap."""

    __slots__ = ("_bounds", "_labels")

    def __init__(self) -> None:
        self._labels: dict[tuple[int, int, str, str], None] = {}  # an ordered set
        self._bounds: npt.NDArray[np.int64] | None = None

    def add(self, label: Label) -> None:
        self._labels[label.lo, label.hi, label.kind, label.name] = None
        self._bounds = None

    def of(self, lo: int, hi: int) -> set[Name]:
        """The names of the bytes from ``lo`` to ``hi`` (exclusive)."""
        labels = list(self._labels)
        if self._bounds is None:
            self._bounds = np.array([label[:2] for label in labels], dtype=np.int64).reshape(-1, 2)
        hits = np.flatnonzero((self._bounds[:, 0] < hi) & (self._bounds[:, 1] > lo))
        return {Name(*labels[at][2:]) for at in hits}


def parameter_of(record: Launch | Collective, labels: Mapping[int, Labels]) -> str:
    """The parameter that work is about: of what it writes, else of what it reads; empty where no label says so.

    ``labels``: by block. Of several parameters the first, and how many more there are.
    """
    for accesses in (record.writes, record.reads):
        names: dict[str, None] = {}
        for block, lo, hi, _ in accesses:
            known = labels.get(block)
            if known is not None:
                names |= dict.fromkeys(sorted(name.name for name in known.of(lo, hi)))
        if names:
            first, *others = names
            return f"{first} +{len(others)}" if others else first
    return ""
