"""What two runs are compared by that differ in memory that nobody wrote (:mod:`streamrace.device.unwritten`)."""

from __future__ import annotations

COLLECTIVE, PARAMETER = "collective", "parameter"
"""Kinds of a :class:`streamrace.device.trace.Probe` there: what a collective takes, a parameter after a step."""
PARTS = 8
LONG = 64  # bytes


def alike(nbytes: int, one: int, other: int) -> bool:
    """Is half of it the same, or more, by these two checksums of eight bits an eighth? Of less than :data:`LONG` bytes
    the checksum is one, and all must be the same.

    So a padding that is copied, sent or stored beside what counts makes no difference.
    """
    if nbytes < LONG:
        return one == other
    differ = one ^ other
    return sum(bool(differ >> 8 * part & 0xFF) for part in range(PARTS)) <= PARTS // 2
