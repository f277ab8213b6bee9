"""The record of a call that orders something, where a run tells its waits apart: a part of ``device.trace``."""

from __future__ import annotations

from typing import NamedTuple

LEFT_OUT = "without "  # in front of the operation of a call that was not made


class Asked(NamedTuple):
    """The program makes a call that orders something, at this place: what it gave the device is recorded behind this.

    ``operation``: one of :data:`streamrace.device.overrides.OPERATIONS`, behind :data:`LEFT_OUT` where the call was
    left out, or empty: a library of the device's own asked. ``block``: of ``record_stream``, which is recorded once for
    a block and a ``stream``, however many ask. Only written where the run was to tell its waits apart
    (:func:`streamrace.device.overrides.tell`).
    """

    operation: str
    file: str
    line: int
    function: str
    stream: int
    block: int = -1
