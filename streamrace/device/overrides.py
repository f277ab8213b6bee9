"""Replaces ordering calls of a program that is not edited, by the place where a call is made.

An :class:`Override` gives the replacement. These calls check for overrides: the methods of
:class:`streamrace.device.streams.Stream`, ``torch.cuda.synchronize``, ``Work.wait`` and ``Tensor.record_stream``; for
an event's own ``wait`` and ``synchronize``, which are compiled, the device checks (``csrc/guard.cpp``) if an override,
:func:`count` or :func:`tell` needs it. A call made inside another of these calls, or by autograd's engine, does not
count as a call of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from streamrace.device import tracing
from streamrace.device.library import Overridden, functions
from streamrace.trace.records import LEFT_OUT, NOBODY, Asked, Frame

OPERATIONS = (
    "stream.synchronize", "stream.wait_stream", "stream.wait_event", "event.synchronize", "event.wait",
    "device.synchronize", "work.wait", "tensor.record_stream",
)  # fmt: skip


class Override(NamedTuple):
    """A replacement for the call at one place.

    ``operation``: one of :data:`OPERATIONS`. ``function``: suffix of the qualified name. ``file``: suffix of the path.
    ``instead``: called with the stream that the call concerns (for ``event.synchronize``: the current one). ``line``:
    line in the file, if a function has several such calls (0: all of them).
    """

    operation: str
    function: str
    file: str
    instead: Callable[[Any], object]
    line: int = 0

    def stands_at(self, frame: Frame) -> bool:
        """Check whether the override applies to a call from ``frame``."""
        return (
            frame.function.endswith(self.function) and frame.file.endswith(self.file) and self.line in (0, frame.line)
        )


class Site(NamedTuple):
    """A call that orders something. ``operation``: one of :data:`OPERATIONS`."""

    operation: str
    file: str
    line: int
    function: str


overrides: list[Override] = []
"""Overrides of this process. They apply while its work is traced: only then are call sites known."""

_counted: list[dict[Site, int]] = []
_told = False
_here = threading.local()


def put(more: Iterable[Override]) -> None:
    """Add overrides. Raise ValueError for an operation that cannot be overridden."""
    for override in more:
        if override.operation not in OPERATIONS:
            raise ValueError(
                f"no override can take out '{override.operation}' here: choose one of {', '.join(OPERATIONS)}"
            )
        overrides.append(override)
    if any(override.operation.startswith("event.") for override in overrides):
        _listen()


def count() -> dict[Site, int]:
    """Start counting ordering calls by site; return the live counts, in the program's order. Calls replaced by an
    override are not counted, nor is ``record_stream``, which orders no work. The caller may change the numbers.
    """
    if not _counted:
        _counted.append({})
        _listen()
    return _counted[0]


def tell() -> None:
    """Start recording the place of each such call in the trace (:class:`streamrace.trace.records.Asked`)."""
    global _told
    if not _told:
        _told = True
        _listen()


def leave_out(places: Iterable[str]) -> None:
    """Skip the calls at these places, such as ``stream.wait_event@file.py:12``. Raise ValueError for other texts."""
    put([_left_out(place) for place in places])


def _left_out(place: str) -> Override:
    operation, _, rest = place.partition("@")
    file, _, line = rest.rpartition(":")
    if not file or not (line.isdecimal() and line.isascii()) or len(line) > 9:
        raise ValueError(f"'{place}' is no place of a wait: it is stream.wait_event@file.py:12")
    return Override(operation, "", file, lambda _: None, int(line))


def overridden(operation: str, stream: torch.Stream, block: Callable[[], int] = lambda: NOBODY) -> bool:
    """Apply the override for the calling place, if any. Return whether it replaced the call.

    ``block``: returns the number of the block that the call concerns.
    """
    if not _counted and not _told and not any(override.operation == operation for override in overrides):
        return False
    if getattr(_here, "inside", False):
        if _told and operation == "tensor.record_stream":
            tracing.note(Asked("", "", 0, "", stream.stream_id, block()))
        return False
    frame = tracing.caller()
    if frame is None:
        return False
    for override in overrides:
        if override.operation == operation and override.stands_at(frame):
            if _told:
                tracing.note(Asked(f"{LEFT_OUT}{operation}", *frame, stream.stream_id))
            part(override.instead, stream)
            return True
    for counts in _counted if operation != "tensor.record_stream" else ():
        site = Site(operation, frame.file, frame.line, frame.function)
        counts[site] = counts.get(site, 0) + 1
    if _told:
        tracing.note(Asked(operation, *frame, stream.stream_id, block()))
    return False


def part(call: Callable[..., object], *arguments: object) -> None:
    """Make a call as part of another ordering call, so that it does not count as a call of its own."""
    before, _here.inside = getattr(_here, "inside", False), True
    try:
        call(*arguments)
    finally:
        _here.inside = before


def _listen() -> None:
    """Let the device check for overrides before an event is waited for."""

    def asked(waits: int, stream: int) -> int:
        if torch._C._current_graph_task_id() >= 0:
            return 0
        try:
            about = torch.cuda.Stream(stream_id=stream, device_index=functions().index(), device_type=1)
            return int(overridden("event.wait" if waits else "event.synchronize", about))
        except BaseException as problem:  # the caller is C++: only the next wait can raise the error
            functions().failed(f"an override went wrong: {problem}".encode())
            return 0

    f = functions()
    f.overrides(f.callback("overrides", Overridden, asked))
