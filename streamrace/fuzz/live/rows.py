"""Stores rows of numbers about each piece of work of a run that may have a million, most of them in a file."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO, Generic, TypeVar, get_type_hints, overload

Row = TypeVar("Row", bound=tuple[Any, ...])
_BLOCK = 1024  # rows per block


class Spill:
    """A nameless temporary file, which disappears with its last reader, however that process ends.

    The file is created with the first bytes. Raises OSError if it cannot be created, written or read.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0

    def add(self, data: bytes | bytearray) -> int:
        """Append ``data``; return its offset."""
        with _named():
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it stays open
                weakref.finalize(self, self._file.close)
            at, remaining = self._end, memoryview(data)
            while remaining:
                done = os.pwrite(self._file.fileno(), remaining, self._end)
                self._end, remaining = self._end + done, remaining[done:]
        return at

    def read(self, at: int, count: int) -> bytes:
        """Return ``count`` bytes that :meth:`add` put at ``at``."""
        assert self._file is not None
        with _named():
            data = os.pread(self._file.fileno(), count, at)
            if len(data) < count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data


@contextmanager
def _named() -> Iterator[None]:
    """Add the temporary folder to an OSError, as the nameless file has no path to show."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or tempfile.tempdir
        raise


class Rows(Sequence[Row], Generic[Row]):
    """A list of equal NamedTuples of integers and (few distinct) words: eight bytes a field.

    All but the last thousand are in ``spill`` (default: one of its own), which several lists may share.
    """

    def __init__(self, kind: type[Row], spill: Spill | None = None) -> None:
        self._kind = kind
        self._form = struct.Struct(f"={len(kind.__annotations__)}q")
        self._spill = spill or Spill()
        self._blocks: list[int] = []
        self._last = bytearray()
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._worded = [at for at, annotation in enumerate(get_type_hints(kind).values()) if annotation is str]

    def add(self, *fields: Any) -> None:
        if self._worded:
            values = list(fields)
            for at in self._worded:
                values[at] = self._numbers.setdefault(values[at], len(self._words))
                if values[at] == len(self._words):
                    self._words.append(fields[at])
            self._last += self._form.pack(*values)
        else:
            self._last += self._form.pack(*fields)
        if len(self._last) == _BLOCK * self._form.size:
            self._blocks.append(self._spill.add(self._last))
            self._last.clear()

    def columns(self, *fields: str) -> Iterator[tuple[int, list[array[int]]]]:
        """Yield per block the number of earlier rows, and the fields' columns: numbers, or the numbers of words."""
        of, width = [self._column(field) for field in fields], len(self._kind.__annotations__)
        for part, data in enumerate(self._parts()):
            numbers = array("q", data)
            yield part * _BLOCK, [numbers[column::width] for column in of]

    def first(self, **conditions: int | str) -> int | None:
        """Return the index of the first row with these fields; None if there is none."""
        sought: list[int] = []
        for value in conditions.values():
            number = self._numbers.get(value) if isinstance(value, str) else value
            if number is None:
                return None
            sought.append(number)
        for before, (column, *others) in self.columns(*conditions):
            at = -1
            while True:
                try:
                    at = column.index(sought[0], at + 1)
                except ValueError:
                    break
                if all(other[at] == value for other, value in zip(others, sought[1:], strict=True)):
                    return before + at
        return None

    def number(self, at: int, field: str) -> int:
        """Return the value of the row's field, or the number of its word."""
        return self._numbers_at(at)[self._column(field)]

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK + len(self._last) // self._form.size

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[index] for index in range(len(self))[at]]
        return self._row(self._numbers_at(range(len(self))[at]))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, chain.from_iterable(map(self._form.iter_unpack, self._parts())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and len(self) == len(other) and all(map(self._kind.__eq__, self, other))

    def __hash__(self) -> int:
        raise TypeError("rows are a list")

    def _column(self, field: str) -> int:
        return [*self._kind.__annotations__].index(field)

    def _parts(self) -> Iterator[bytes]:
        """Yield all rows as bytes, block by block."""
        yield from (self._spill.read(at, _BLOCK * self._form.size) for at in self._blocks)
        yield bytes(self._last)

    def _numbers_at(self, at: int) -> tuple[int, ...]:
        block, within = divmod(at, _BLOCK)
        if block == len(self._blocks):
            return self._form.unpack_from(self._last, within * self._form.size)
        return self._form.unpack(self._spill.read(self._blocks[block] + within * self._form.size, self._form.size))

    def _row(self, numbers: tuple[int, ...]) -> Row:
        values: list[Any] = [*numbers]
        for column in self._worded:
            values[column] = self._words[values[column]]
        return self._kind(*values)
