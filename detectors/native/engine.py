"""Wraps the native engine: the twin of :class:`streamrace.detectors.order.happens_before.HappensBefore`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

from streamrace.detectors.native.build import library
from streamrace.detectors.order.races import Moment, Name, Occurrence, Side
from streamrace.detectors.order.rank import PROBES, Report
from streamrace.trace.records import Frame, Phase, TraceError, TraceRecord
from streamrace.trace.schema import TYPES

# In the order of `Part` in csrc/rank.h.
_PARTS = (*TYPES, TraceError, Phase(0, 0, "init"), Name, PROBES, None)

_Told = tuple[Any, ...]
"""One side of a race: kernel, access, stream, issuer, frames, number (None: a free), phase, start, end."""


class NativeHappensBefore:
    """Reports each occurrence of a race. Accepts the ranks' records in any interleaving; the races are the same.

    Raises :class:`streamrace.compiling.BuildError` if the library does not exist and cannot be built.
    """

    def __init__(self, report: Report) -> None:
        self._library = load()
        self._report = report
        self._it = self._library.order_new(_PARTS)
        weakref.finalize(self, self._library.order_delete, self._it)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``'s trace.

        Raises :class:`streamrace.trace.records.TraceError` for inconsistent records, ValueError after :meth:`finish`.
        """
        self._library.order_feed(self._it, rank, records, self._found)

    def finish(self) -> None:
        """End the input: follow ranks that wait for a missing member as far as possible without it.

        Further calls do nothing.
        """
        self._library.order_finish(self._it, self._found)

    def waits(self, rank: int) -> bool:
        """Check whether ``rank``'s records are held up at a collective that other members have not reached."""
        return bool(self._library.order_waits(self._it, rank))

    def settle(self) -> None:
        """Name the bytes of the races so far."""
        self._library.order_settle(self._it)

    @property
    def live_state(self) -> int:
        """Return how many blocks, markers and open collectives are kept, as a measure of memory."""
        return int(self._library.order_live_state(self._it))

    @property
    def work(self) -> int:
        """Return the records followed, accesses visited and runs of bytes compared so far, as a measure of time."""
        return int(self._library.order_work(self._it))

    def _found(
        self,
        rank: int,
        block: int,
        lo: int,
        hi: int,
        slack: int,
        first: _Told,
        second: _Told,
        allocated: tuple[Frame, ...] | None,
    ) -> object:
        occurrence = Occurrence(rank, block, lo, hi, _moment(first), _moment(second), slack < 0, slack)
        return self._report(_side(first), _side(second, allocated), occurrence)


def _side(told: _Told, allocated: tuple[Frame, ...] | None = None) -> Side:
    kernel, access, stream, issuer, frames, *_ = told
    return Side(kernel, access, stream, issuer, frames, allocated)


def _moment(told: _Told) -> Moment:
    op, (step, micro_batch, phase), start, end = told[5:]
    return Moment(op, step, micro_batch, phase, start, end)


@cache
def load() -> Any:
    """Load the functions of ``csrc/api.cpp``. They hold the interpreter's lock, and their exceptions are raised here.

    Raises :class:`streamrace.compiling.BuildError`, and OSError if the built library cannot be loaded.
    """
    loaded = ctypes.PyDLL(str(library()))
    handle, number, thing = ctypes.c_void_p, ctypes.c_longlong, ctypes.py_object
    for name, result, arguments in (
        ("order_new", handle, [thing]),
        ("order_delete", None, [handle]),
        ("order_feed", None, [handle, number, thing, thing]),
        ("order_finish", None, [handle, thing]),
        ("order_waits", ctypes.c_int, [handle, number]),
        ("order_settle", None, [handle]),
        ("order_live_state", number, [handle]),
        ("order_work", number, [handle]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
