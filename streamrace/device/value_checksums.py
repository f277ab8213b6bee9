"""Computes checksums to compare two runs that differ in unwritten memory (:mod:`streamrace.device.uninitialised`)."""

from __future__ import annotations

import zlib

COLLECTIVE, PARAMETER = "collective", "parameter"
"""Kinds of :class:`streamrace.trace.records.Probe` in such runs: a collective's input, a parameter after a step."""
PARTS = 7


def parts(data: bytes, itemsize: int) -> int:
    """Return eight bits of checksum for each seventh of the elements, below the number of sevenths that have any.

    Computed like the checksum that ``csrc/probes.cpp`` takes of the host's reads.
    """
    count = len(data) // itemsize
    checksum = min(count, PARTS) << 8 * PARTS
    for part in range(PARTS):
        lo, hi = (count * at // PARTS * itemsize for at in (part, part + 1))
        checksum |= (zlib.crc32(data[lo:hi]) & 0xFF) << 8 * part
    return checksum


def differing(first: int, second: int) -> float:
    """Return the fraction of the sevenths, from 0 to 1, in which these two checksums differ."""
    count = first >> 8 * PARTS
    return sum(bool((first ^ second) >> 8 * part & 0xFF) for part in range(PARTS)) / count if count else 0.0
