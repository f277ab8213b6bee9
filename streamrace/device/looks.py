"""What two runs are compared by that differ in memory that nobody wrote (:mod:`streamrace.device.unwritten`)."""

from __future__ import annotations

import zlib

COLLECTIVE, PARAMETER = "collective", "parameter"
"""Kinds of a :class:`streamrace.trace.records.Probe` there: what a collective takes, a parameter after a step."""
PARTS = 7


def parts(data: bytes, itemsize: int) -> int:
    """A checksum of eight bits for each seventh of the elements, and above how many of them are of any.

    As ``csrc/probes.cpp`` makes it of what the host reads.
    """
    count = len(data) // itemsize
    made = min(count, PARTS) << 8 * PARTS
    for part in range(PARTS):
        lo, hi = (count * at // PARTS * itemsize for at in (part, part + 1))
        made |= (zlib.crc32(data[lo:hi]) & 0xFF) << 8 * part
    return made


def differing(one: int, other: int) -> float:
    """How much of it is otherwise, from 0 to 1, by these two checksums."""
    count = one >> 8 * PARTS
    return sum(bool((one ^ other) >> 8 * part & 0xFF) for part in range(PARTS)) / count if count else 0.0
