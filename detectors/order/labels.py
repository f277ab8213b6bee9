"""Maps the bytes of a block to the parameters they belong to."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamrace.detectors.order.races import Name
from streamrace.trace.records import Label


class HasNames(Protocol):
    """A race that collects the names of its bytes."""

    names: set[Name]


class Labels:
    """The labels of one block: numerous and rarely queried, so adding has to be cheap."""

    __slots__ = ("_bounds", "_labels")

    def __init__(self) -> None:
        self._labels: dict[tuple[int, int, str, str], None] = {}  # an ordered set
        self._bounds: npt.NDArray[np.int64] | None = None

    def add(self, label: Label) -> None:
        self._labels[label.lo, label.hi, label.kind, label.name] = None
        self._bounds = None

    def of(self, lo: int, hi: int) -> set[Name]:
        """Return the names of the bytes from ``lo`` to ``hi`` (exclusive)."""
        labels = list(self._labels)
        if self._bounds is None:
            self._bounds = np.array([label[:2] for label in labels], dtype=np.int64)
        hits = np.flatnonzero((self._bounds[:, 0] < hi) & (self._bounds[:, 1] > lo))
        return {Name(*labels[at][2:]) for at in hits}
