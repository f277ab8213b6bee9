"""Wraps the native library for Python: the twin of :class:`streamrace.replay.numbering.Numbering`, times and order."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrace.replay.native.build import library
from streamrace.replay.numbering import Deed, Effects, OutOfOrder

_WHAT = {"nothing": 0, "work": 1, "arrive": 2, "leave": 3, "inherit": 4}

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]


class NativeNumbering:
    """The native twin of :class:`streamrace.replay.numbering.Numbering`. Spans must lie within their blocks.

    Raises :class:`streamrace.compiling.BuildError` if the library is missing and cannot be built.
    """

    def __init__(self, deeds: Sequence[Deed], bases: _Numbers, sizes: _Numbers, initial: _Bytes, *, limit: int) -> None:
        self._library = load()
        self._places = len(deeds)
        self._most = max((deed.members for deed in deeds), default=0)
        columns = [
            _numbers(_WHAT[deed.what] for deed in deeds),
            _numbers(deed.exchange for deed in deeds),
            _numbers(deed.member for deed in deeds),
            _numbers(deed.members for deed in deeds),
        ]
        for rows in ([deed.reads for deed in deeds], [deed.writes for deed in deeds], [deed.passed for deed in deeds]):
            columns.append(_numbers(accumulate((len(deed_rows) for deed_rows in rows), initial=0)))
            columns.append(_numbers(number for deed_rows in rows for row in deed_rows for number in row))
        self._it = self._library.numbering_new(
            self._places, *map(_at, columns), len(sizes), _at(bases), _at(sizes), initial.size, _at(initial), limit
        )
        weakref.finalize(self, self._library.numbering_delete, self._it)

    def forget(self) -> None:
        self._library.numbering_forget(self._it)

    @property
    def count(self) -> int:
        return int(self._library.numbering_count(self._it))

    @property
    def words(self) -> int:
        return int(self._library.numbering_words(self._it))

    @property
    def held(self) -> int:
        return int(self._library.numbering_held(self._it))

    def lay_out(self, layout: int, bases: _Numbers) -> None:
        self._library.numbering_lay_out(self._it, layout, _at(bases))

    def drop(self, layout: int) -> None:
        self._library.numbering_drop(self._it, layout)

    def follow(self, layout: int, order: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Follow the effects in ``order``. Raises :class:`streamrace.replay.numbering.OutOfOrder`."""
        order = np.ascontiguousarray(order, dtype=np.int64)
        computed, fresh = np.empty(self._places, dtype=np.int64), np.empty(len(order), dtype=np.int64)
        count = self._library.numbering_follow(self._it, layout, _at(order), len(order), _at(computed), _at(fresh))
        if count < 0:
            raise OutOfOrder
        return computed, fresh[:count]

    def place(self, number: int) -> int:
        return int(self._library.numbering_place(self._it, number))

    def arrivals(self, number: int) -> list[int]:
        buffer = (ctypes.c_int64 * self._most)()
        return list(buffer[: self._library.numbering_arrivals(self._it, number, buffer)])

    def done(self, numbers: _Numbers) -> None:
        numbers = np.ascontiguousarray(numbers, dtype=np.int64)
        self._library.numbering_done(self._it, _at(numbers), len(numbers))

    def give(self, number: int, memory: _Bytes) -> int:
        return int(self._library.numbering_give(self._it, number, memory.ctypes.data))

    def keep(self, number: int, memory: _Bytes) -> None:
        self._library.numbering_keep(self._it, number, memory.ctypes.data)

    def bound(self, limit: int) -> None:
        self._library.numbering_bound(self._it, limit)

    def carry_out(self, numbers: _Numbers, effects: Effects, memory: _Bytes) -> int:
        numbers = np.ascontiguousarray(numbers, dtype=np.int64)
        them = self._checked(effects), memory.ctypes.data
        return int(self._library.numbering_carry_out(self._it, _at(numbers), len(numbers), *them))

    def stage(self, number: int, effects: Effects, memory: _Bytes) -> int:
        return int(self._library.numbering_stage(self._it, number, self._checked(effects), memory.ctypes.data))

    def unstage(self) -> None:
        self._library.numbering_unstage(self._it)

    def _checked(self, effects: Effects) -> int:
        """Return the address of the callables: a contiguous array of objects. Raises TypeError for any other array."""
        if effects.dtype != object or effects.shape != (self._places,) or not effects.flags.c_contiguous:
            raise TypeError("effects are an array of one object for each place")
        return effects.ctypes.data


def times(preds_at: _Numbers, preds: npt.NDArray[np.int32], costs: _Numbers, begin: int, out: _Numbers) -> None:
    """Write each node's time from ``begin`` on into ``out``: the latest of its predecessors plus its cost."""
    load().replay_times(len(out), _at(preds_at), _at(preds), _at(costs), begin, _at(out))


def sort(when: _Numbers, order: _Numbers) -> None:
    """Sort places in ``order`` by time, then by place; fastest if ``order`` is nearly sorted."""
    load().replay_sort(len(order), _at(when), _at(order))


def _at(numbers: npt.NDArray[Any]) -> int:
    return numbers.ctypes.data


def _numbers(values: Iterable[int]) -> _Numbers:
    return np.fromiter(values, dtype=np.int64)


@cache
def load() -> Any:
    """Return the functions of ``csrc/api.cpp``.

    Raises :class:`streamrace.compiling.BuildError`, and OSError if the built library cannot be loaded.
    """
    loaded = ctypes.PyDLL(str(library()))  # PyDLL keeps the GIL: the library calls effects
    it, number, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
        ("numbering_new", it, [number, *[numbers] * 10, number, numbers, numbers, number, numbers, number]),
        ("numbering_delete", None, [it]),
        ("numbering_forget", None, [it]),
        ("numbering_lay_out", None, [it, number, numbers]),
        ("numbering_drop", None, [it, number]),
        ("numbering_follow", number, [it, number, numbers, number, numbers, numbers]),
        ("numbering_place", number, [it, number]),
        ("numbering_arrivals", number, [it, number, numbers]),
        ("numbering_done", None, [it, numbers, number]),
        ("numbering_give", number, [it, number, numbers]),
        ("numbering_keep", None, [it, number, numbers]),
        ("numbering_bound", None, [it, number]),
        ("numbering_carry_out", number, [it, numbers, number, numbers, numbers]),
        ("numbering_stage", number, [it, number, numbers, numbers]),
        ("numbering_unstage", None, [it]),
        ("numbering_count", number, [it]),
        ("numbering_words", number, [it]),
        ("numbering_held", number, [it]),
        ("replay_times", None, [number, numbers, numbers, numbers, number, numbers]),
        ("replay_sort", None, [number, numbers, numbers]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
