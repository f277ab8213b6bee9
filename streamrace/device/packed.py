"""Records that no Python made: as they stand in a trace's file. A part of :mod:`streamrace.device.trace`."""

from __future__ import annotations

from typing import NamedTuple


class Packed(NamedTuple):
    """``operations``: launches among them; ``op``: the last one's number (-1: there is none).

    The C++ part makes them of its words (``csrc/packed.cpp``) as the writer of traces would of records.
    """

    data: bytes
    operations: int
    op: int
