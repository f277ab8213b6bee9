"""Stores many numbers in little memory: for each wait of a run of millions of operations."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class NumberSet:
    """A set of whole numbers, eight bytes each. Mostly added in ascending order; sorted on demand otherwise."""

    __slots__ = ("_numbers", "_sorted")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._sorted = True

    def add(self, number: int) -> None:
        if self._numbers and number <= self._numbers[-1]:
            if number == self._numbers[-1]:
                return
            self._sorted = False
        self._numbers.append(number)

    def __contains__(self, number: int) -> bool:
        self._sort()
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number

    def __iter__(self) -> Iterator[int]:
        self._sort()
        return iter(self._numbers)

    def _sort(self) -> None:
        if not self._sorted:
            self._numbers = array("q", sorted(set(self._numbers)))
            self._sorted = True


class Places(Generic[_Item]):
    """Maps numbered places to a few distinct items: twelve bytes each."""

    __slots__ = ("_at", "_ids", "_items", "_sorted")

    def __init__(self) -> None:
        self._at, self._ids = array("q"), array("i")
        self._items: dict[_Item, int] = {}
        self._sorted = True

    def add(self, at: int, item: _Item) -> None:
        if self._at and at < self._at[-1]:
            self._sorted = False
        self._at.append(at)
        self._ids.append(self._items.setdefault(item, len(self._items)))

    def between(self, first: int, second: int | None) -> frozenset[_Item]:
        """Return the items at ``first`` or later, and before ``second`` (None: no end)."""
        if not self._sorted:
            order = sorted(range(len(self._at)), key=self._at.__getitem__)
            self._at, self._ids = (array(a.typecode, [a[at] for at in order]) for a in (self._at, self._ids))
            self._sorted = True
        until = len(self._at) if second is None else bisect_left(self._at, second)
        numbers = set(self._ids[bisect_left(self._at, first) : until])
        return frozenset(item for item, number in self._items.items() if number in numbers)
