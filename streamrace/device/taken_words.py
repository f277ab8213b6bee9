"""Turns the words that a C++ part took down (``csrc/trace.h``) into records of a trace."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_int64
from typing import Any

from streamrace.trace.encoding import Packed
from streamrace.trace.records import TraceRecord


class TakenWords:
    """The words taken down since the last batch. Stacks that they name are known once it is made.

    ``take``: a function of the C++ part. ``everything``: also work whose times are not known.
    """

    def __init__(self, take: Any, *, everything: bool) -> None:
        self._count = c_int64()
        self._data = take(ctypes.byref(self._count), everything)

    def records(
        self, pack: Any, complete: Callable[[int, Sequence[int]], TraceRecord | None]
    ) -> Iterator[TraceRecord | Packed]:
        """Yield packed records, and those that only Python can complete.

        ``pack``: a function of the C++ part. ``complete`` gets the kind and the words of a record, and returns None if
        there is no more to it.
        """
        data, at, info = self._data, c_int64(), (c_int64 * 3)()
        while at.value < self._count.value:
            packed = pack(data, self._count, ctypes.byref(at), info)
            if info[0]:
                yield Packed(ctypes.string_at(packed, info[0]), *info[1:])
            if at.value < self._count.value:
                begin = at.value + 2
                at.value = begin + data[begin - 1]
                record = complete(data[begin - 2], data[begin : at.value])
                if record is not None:
                    yield record
