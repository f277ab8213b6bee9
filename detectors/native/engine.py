"""Wraps the native engine: the twin of :class:`streamrace.detectors.order.happens_before.HappensBefore`."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

from streamrace.detectors.native.build import library
from streamrace.detectors.order.labels import HasNames
from streamrace.detectors.order.races import AccessKind, Moment, Name, Occurrence, Side
from streamrace.detectors.order.rank import PROBES, Report
from streamrace.trace.encoding import Encoded, encode, frames
from streamrace.trace.records import Frame, TraceError, TraceRecord

_MORE, _ERRORS = 1, (TraceError, ValueError, RuntimeError)  # as `Status` in csrc/api.cpp
_ACCESSES: tuple[AccessKind, ...] = ("read", "write", "free")
_SOME = 4096  # records that are encoded at a time
_OCCURRENCE, _NAMED, _PAIR = 18, 3, 11  # words: csrc/reports.h


class NativeHappensBefore:
    """Reports each occurrence of a race. Accepts the ranks' records in any interleaving; the races are the same.

    The engine reads the bytes of a trace as they are in the file; other records are encoded first. Raises
    :class:`streamrace.compiling.BuildError` if the library does not exist and cannot be built.
    """

    def __init__(self, report: Report) -> None:
        self._library = load()
        self._report = report
        self._pairs: dict[int, tuple[Side, Side]] = {}
        self._races: dict[int, HasNames] = {}  # by pair
        self._texts: dict[int, str] = {}
        self._engine = self._library.order_new(PROBES.encode())
        weakref.finalize(self, self._library.order_delete, self._engine)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``'s trace.

        Raises :class:`streamrace.trace.records.TraceError` for inconsistent records, ValueError after :meth:`finish`
        and for records that are damaged.
        """
        for data in _bytes(records):
            self._follow(self._library.order_feed(self._engine, rank, data, len(data)))

    def finish(self) -> None:
        """End the input: follow ranks that wait for a missing member as far as possible without it.

        Further calls do nothing.
        """
        self._follow(self._library.order_finish(self._engine))

    def waits(self, rank: int) -> bool:
        """Check whether ``rank``'s records are held up at a collective that other members have not reached."""
        return bool(self._library.order_waits(self._engine, rank))

    def settle(self) -> None:
        """Name the bytes of the races so far."""
        self._library.order_settle(self._engine)
        self._tell()

    @property
    def live_state(self) -> int:
        """Return how many blocks, markers and open collectives are kept, as a measure of memory."""
        return int(self._library.order_live_state(self._engine))

    @property
    def work(self) -> int:
        """Return the records followed, accesses visited and runs of bytes compared so far, as a measure of time."""
        return int(self._library.order_work(self._engine))

    def _follow(self, status: int) -> None:
        """Let the engine work until all is done. It returns after some milliseconds each time, so Ctrl-C works."""
        while status:
            self._tell()
            if status != _MORE:
                raise _ERRORS[status - _MORE - 1](self._library.order_problem(self._engine).decode(errors="replace"))
            status = self._library.order_go_on(self._engine)

    def _tell(self) -> None:
        """Report the races since the last call, and add their names."""
        for pair, rank, block, lo, hi, slack, *moments in self._words("order_found", _OCCURRENCE):
            if pair not in self._pairs:
                self._pairs[pair] = self._pair(pair)
            first, second = self._pairs[pair]
            times = self._moment(first, moments[:6]), self._moment(second, moments[6:])
            occurrence = Occurrence(rank, block, lo, hi, *times, slack < 0, slack)
            self._races[pair] = self._report(first, second, occurrence)
        for pair, kind, name in self._words("order_named", _NAMED):
            self._races[pair].names.add(Name(self._text(kind), self._text(name)))

    def _words(self, function: str, size: int) -> Iterator[list[int]]:
        count = ctypes.c_longlong()
        words = getattr(self._library, function)(self._engine, ctypes.byref(count))
        numbers = words[: count.value]
        return (numbers[at : at + size] for at in range(0, count.value, size))

    def _pair(self, number: int) -> tuple[Side, Side]:
        words = self._library.order_pair(self._engine, number)[:_PAIR]
        allocated = None if words[10] < 0 else frames(self._bytes_of(words[10]))
        return self._side(words[:5]), self._side(words[5:10], allocated)

    def _side(self, words: list[int], allocated: tuple[Frame, ...] | None = None) -> Side:
        kernel, access, stream, issuer, stack = words
        texts = self._text(stream), self._text(issuer), frames(self._bytes_of(stack))
        return Side(self._text(kernel), _ACCESSES[access], *texts, allocated)

    def _moment(self, side: Side, words: list[int]) -> Moment:
        op, step, micro_batch, phase, start, end = words
        return Moment(None if side.access == "free" else op, step, micro_batch, self._text(phase), start, end)

    def _text(self, number: int) -> str:
        text = self._texts.get(number)
        if text is None:
            text = self._texts[number] = self._bytes_of(number).decode()
        return text

    def _bytes_of(self, number: int) -> bytes:
        size = ctypes.c_longlong()
        return ctypes.string_at(self._library.order_text(self._engine, number, ctypes.byref(size)), size.value)


def _bytes(records: Iterable[TraceRecord]) -> Iterator[bytes]:
    """Yield the bytes of the records, some at a time; at least once."""
    if isinstance(records, Encoded):
        yield records.data
        return
    remaining = iter(records)
    yield encode(islice(remaining, _SOME))
    while batch := [*islice(remaining, _SOME)]:
        yield encode(batch)


@cache
def load() -> Any:
    """Load the functions of ``csrc/api.cpp``. They hold the interpreter's lock.

    Raises :class:`streamrace.compiling.BuildError`, and OSError if the built library cannot be loaded.
    """
    loaded = ctypes.PyDLL(str(library()))
    handle, number, words = ctypes.c_void_p, ctypes.c_longlong, ctypes.POINTER(ctypes.c_longlong)
    for name, result, arguments in (
        ("order_new", handle, [ctypes.c_char_p]),
        ("order_delete", None, [handle]),
        ("order_feed", ctypes.c_int, [handle, number, ctypes.c_char_p, number]),
        ("order_finish", ctypes.c_int, [handle]),
        ("order_go_on", ctypes.c_int, [handle]),
        ("order_waits", ctypes.c_int, [handle, number]),
        ("order_settle", None, [handle]),
        ("order_live_state", number, [handle]),
        ("order_work", number, [handle]),
        ("order_problem", ctypes.c_char_p, [handle]),
        ("order_found", words, [handle, words]),
        ("order_named", words, [handle, words]),
        ("order_pair", words, [handle, number]),
        ("order_text", handle, [handle, number, words]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
