"""What is kept of each piece of work of a run that may have a million: a few columns of numbers, no objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, get_type_hints, overload

Row = TypeVar("Row", bound=tuple[Any, ...])


class Rows(Sequence[Row], Generic[Row]):
    """A list of equal NamedTuples of whole numbers and of words, of which there are few: eight bytes a field."""

    def __init__(self, kind: type[Row]) -> None:
        self._kind = kind
        self._columns = [array("q") for _ in kind.__annotations__]
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._worded = [at for at, one in enumerate(get_type_hints(kind).values()) if one is str]

    def add(self, *fields: Any) -> None:
        values = list(fields)
        for at in self._worded:
            values[at] = self._numbers.setdefault(values[at], len(self._words))
            if values[at] == len(self._words):
                self._words.append(fields[at])
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def column(self, field: str) -> array[int]:
        """All rows' numbers, or the numbers of their words."""
        return self._columns[[*self._kind.__annotations__].index(field)]

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        values: list[Any] = [column[at] for column in self._columns]
        for one in self._worded:
            values[one] = self._words[values[one]]
        return self._kind(*values)

    def __iter__(self) -> Iterator[Row]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and len(self) == len(other) and all(map(self._kind.__eq__, self, other))

    def __hash__(self) -> int:
        raise TypeError("rows are a list")
