"""Remembers the last accesses to each element of a storage, in pages that exist once they are touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PAGE = 1 << 12  # elements
NOBODY, SEVERAL = -1, -2  # instead of a program
SCALAR = -3  # instead of a position: an operation on one element, which each thread executes


class Page:
    """The last write and the last read of each element.

    By ``program`` (a read by several: SEVERAL), at its ``time``, in the line ``site``, at a ``position`` in its block,
    and in which of the program's ``epoch``s between barriers. ``atomic``: by an atomic operation.
    """

    def __init__(self) -> None:
        self.written = LastAccess()
        self.read = LastAccess()


class LastAccess:
    def __init__(self) -> None:
        self.program = np.full(PAGE, NOBODY, np.int32)
        self.time = np.zeros(PAGE, np.int32)
        self.site = np.zeros(PAGE, np.int32)
        self.position = np.zeros(PAGE, np.int32)
        self.epoch = np.full(PAGE, -1, np.int32)
        self.atomic = np.zeros(PAGE, bool)


def indexed(elements: Array) -> Array | slice:
    """Return an index that selects these elements: a slice if they follow each other."""
    first, last = int(elements[0]), int(elements[-1])
    consecutive = last - first + 1 == len(elements) and (elements[1:] - elements[:-1] == 1).all()
    return slice(first, last + 1) if consecutive else elements


class ElementShadow:
    """The pages of one storage, from address ``start`` to ``end``, whose elements have ``grain`` bytes.

    ``whole``: False once an access does not consist of whole elements. Nothing is said of such a storage.
    """

    def __init__(self, start: int, end: int, grain: int) -> None:
        self.start, self.end, self.grain = start, end, grain
        self.whole = True
        self._pages: dict[int, Page] = {}

    def parts(self, addresses: Array, positions: Array, size: int) -> Iterator[tuple[Page, Array, Array, Array]]:
        """Yield, by page, the elements that an access touches, their positions and the numbers of their addresses."""
        offsets = addresses.astype(np.int64) - self.start
        if size % self.grain or (offsets % self.grain).any():
            self.whole = False
        if not self.whole or not len(offsets):
            return
        elements, times = offsets // self.grain, size // self.grain
        numbers = np.arange(len(elements))
        if times > 1:
            elements = (elements[:, None] + np.arange(times)).ravel()
            positions, numbers = np.repeat(positions, times), np.repeat(numbers, times)
        first, last = int(elements.min()) // PAGE, int(elements.max()) // PAGE
        for number in [first] if first == last else np.unique(elements // PAGE).tolist():
            page = self._pages.get(number) or self._pages.setdefault(number, Page())
            if first == last:
                yield page, elements - number * PAGE, positions, numbers
            else:
                here = elements // PAGE == number
                yield page, elements[here] - number * PAGE, positions[here], numbers[here]
