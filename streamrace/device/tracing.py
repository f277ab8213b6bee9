"""Traces this process's device: takes what the C++ part recorded, completes it, and hands it on in batches.

In this trace an allocation is a block. A free touches nothing: it marks where the program released the memory;
``Reuse`` records who got the memory again. The host's own accesses to pinned memory are launches on a stream called
"host", for which the host waits at once, so that they are ordered like the host's own accesses.

Finished records are written while the program runs, some 32,000 words at a time. The C++ part packs nearly all of them
as a file holds them (``csrc/packed.cpp``); the few records that need Python's names are made here.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from streamrace.device.callsites import CallSites
from streamrace.device.library import Backward, Define, HandOn, Replayed, ReportedFrame, functions
from streamrace.device.recording import Calls
from streamrace.device.taken_words import TakenWords
from streamrace.trace import wording
from streamrace.trace.encoding import Packed, decode
from streamrace.trace.records import (
    HOST_STREAM,
    Collective,
    End,
    Frame,
    Group,
    Launch,
    Standstill,
    StreamName,
    TraceRecord,
    Transfer,
)
from streamrace.trace.schema import HOST, WordKind

_sites: list[CallSites] = []
# Filled by the modules that create the groups and streams (streamrace.device.nccl).
groups: dict[int, Group] = {}
streams: dict[int, str] = {}
_made: dict[int, str] = {}  # streams that the program created, and where
_first: dict[tuple[int, tuple[Frame, ...]], int] = {}  # by device and call stack: the first stream created there
_like: dict[int, int] = {}  # by stream: the first stream that was created at the same place
_marks: dict[int, TraceRecord] = {}  # records created here, until the C++ part reports their position
_numbers = itertools.count()
_tracing: list[Tracer] = []


def caller() -> Frame | None:
    """Return the place from which the device's own Python code was called; None while nothing is traced."""
    return _sites[0].caller() if _tracing else None


def place() -> str:
    """Return the place as text, also while nothing is traced."""
    return (_sites[0] if _sites else _untraced()).place()


def called_function() -> str:
    """Return the function of torch.distributed that the program called; empty if it called none."""
    return (_sites[0] if _sites else _untraced()).called_function()


def note_standstill(group: int, number: int, call: str, lacks: tuple[int, ...], why: str) -> None:
    """Note that this collective cannot take place, and so none can; and where the host is."""
    if _tracing:
        note(groups[group])  # the collective may be the group's first, and never be issued
        note(Standstill(_sites[0].stack(), group, number, call, lacks, why))


@cache
def _untraced() -> CallSites:
    return CallSites()


def note_stream(stream: int) -> None:
    """Note a stream that the program creates: the trace names it even if it gets no work."""
    if _sites and stream not in _made and (frames := _sites[0].calls()):
        _made[stream] = wording.frame(frames[0], path=True)
        _like[stream] = _first.setdefault((place_of_stream(stream)[0], frames), stream)


def note_work(stream: int) -> None:
    """Note that a stream was given work which the trace does not show: a CUDA graph captured it."""
    _made.pop(stream, None)


def note(record: TraceRecord) -> None:
    """Write a record at this position of the trace, if there is a trace."""
    if _tracing:
        number = next(_numbers)
        _marks[number] = record
        functions().mark(number)


def active() -> bool:
    """Check whether a trace is written."""
    return bool(_tracing)


def recording() -> bool:
    """Check whether the trace is recorded for a replay."""
    return bool(_tracing) and _tracing[0].records


def name_stream(stream: int, name: str) -> None:
    """Set the name by which reports show the stream, in this trace and in later ones."""
    streams[stream] = name
    functions().forget_factors()
    note(StreamName(stream, name))


def name_of_stream(stream: int) -> str:
    """Return the name by which reports show the stream."""
    if known := streams.get(stream):
        return known
    if stream == HOST:
        return HOST_STREAM
    device, place = place_of_stream(stream)
    name = "default" if place == 0 else f"stream {place if place > 0 else stream}"
    return f"cuda:{device} {name}" if functions().most() > 1 else name


def place_of_stream(stream: int) -> tuple[int, int]:
    """Return the device of a stream, and its number there: 0 for the default stream, -1 for a hidden one."""
    pair = (ctypes.c_int64 * 2)()
    functions().stream_place(stream, pair)
    return pair[0], pair[1]


def _told(stream: int) -> str:
    """Return a stream's name for a trace. It mentions the first stream created at the same place, to group races."""
    like = _like.get(stream, stream)
    same = like != stream and not streams.keys() & {like, stream}
    return f"{name_of_stream(stream)}, made where {name_of_stream(like)} was" if same else name_of_stream(stream)


class Tracer:
    """Traces this process's device from construction to :meth:`close`. ``write`` takes finished records.

    ``packed``: ``write`` also takes packed records.
    ``skipped``: further path endings whose frames are not recorded. The first tracer of a process decides.
    ``record``: also record the operations, so that they can be replayed (:mod:`streamrace.device.recording`).
    """

    def __init__(
        self,
        write: Callable[[list[Any]], None],
        *,
        skipped: tuple[str, ...] = (),
        record: bool = False,
        packed: bool = False,
    ) -> None:
        self.records = record
        self._packed = packed
        self._calls = Calls(lambda number: functions().kernel_name(number).decode()) if record else None
        self._named: set[int] = set()
        self._write = write
        if not _sites:
            _sites.append(CallSites(skipped))
        self._sites = _sites[0]
        self._sites.again()
        self._flushing = threading.Lock()
        f = functions()
        reported, define = (
            f.callback("reported", ReportedFrame, self._sites.reported),
            f.callback("define", Define, self._sites.define),
        )
        f.hand_on(f.callback("hand_on", HandOn, self._hand_on))
        f.record(record)
        backward, replayed = (
            f.callback("backward", Backward, self._sites.backward),
            f.callback("replayed", Replayed, self._sites.replayed),
        )
        f.trace(1, reported, define, backward, replayed)
        _tracing[:] = [self]

    def flush(self, *, everything: bool = False) -> None:
        """Write finished records; with ``everything`` also work whose times never became known (-1)."""
        with self._flushing:
            self._flush(everything)

    def _hand_on(self) -> None:
        """Write finished records for the C++ part, which calls this during the program, in any of its threads."""
        if self._flushing.acquire(blocking=False):
            try:
                self._flush(False)
            except BaseException as problem:  # the caller is C++: only the next wait can raise the error
                functions().failed(f"the trace cannot be written: {problem}".encode())
            finally:
                self._flushing.release()

    def _flush(self, everything: bool) -> None:
        f = functions()
        batch = TakenWords(f.trace_take, everything=everything)
        stacks, self._sites.fresh = self._sites.fresh, []
        made: list[TraceRecord | Packed] = [*stacks]
        for record in batch.records(f.trace_packed, self._record):
            if isinstance(record, Packed):
                self._add(record, made)
            else:
                made.append(record)
        if made:
            self._write(made)

    def _add(self, packed: Packed, records: list[TraceRecord | Packed]) -> None:
        if self._packed and self._calls is None:
            records.append(packed)
            return
        decoded = decode(packed.data)
        if self._calls is not None:
            for record in decoded:
                if isinstance(record, (Launch, Collective)):
                    self._calls.launched(record)
        records.extend([packed] if self._packed else decoded)

    def close(self, *, done: bool = True) -> None:
        """Let all work end, write the rest, and stop tracing. Not ``done``: the program failed."""
        f = functions()
        if done and f.drain() < 0:
            raise RuntimeError(f.problem().decode())
        self.flush(everything=True)
        _tracing.clear()
        for stream in sorted(_made.keys() - self._named):
            self._write([StreamName(stream, f"{name_of_stream(stream)}, made at {_made[stream]},")])
        if self._calls is not None:
            self._write(self._calls.missing())
        if done:
            self._write([End(f.now())])
        f.record(0)
        f.trace(0, *(f.keep[name] for name in ("reported", "define", "backward", "replayed")))
        f.hand_on(HandOn())

    def _record(self, kind: int, words: Sequence[int]) -> TraceRecord | None:
        """Return the record of which these words hold a part; None if there is no more to it."""
        if kind == WordKind.GROUP:
            return groups.get(words[0])
        if kind == WordKind.STREAM_NAME:
            self._named.add(words[0])
            return StreamName(words[0], _told(words[0]))
        if kind == WordKind.MARK:
            return self._marked(_marks.pop(words[0]))
        return self._calls.record(kind, words) if self._calls is not None else None

    def _marked(self, record: TraceRecord) -> TraceRecord:
        if self._calls is not None and isinstance(record, Transfer):
            self._calls.reported(record.op)
        return record
