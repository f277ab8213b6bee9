"""Finds the parameter that a piece of work reads or writes, by the labels of its bytes."""

from __future__ import annotations

from collections.abc import Mapping

from streamrace.detectors.order.labels import Labels
from streamrace.trace.records import Collective, Launch


def parameter_of(record: Launch | Collective, labels: Mapping[int, Labels]) -> str:
    """Return the parameter that the work writes, else the one that it reads; empty if no label names one.

    ``labels``: by block. Of several parameters the first is returned, with the count of the others.
    """
    for accesses in (record.writes, record.reads):
        names: dict[str, None] = {}
        for block, lo, hi, _ in accesses:
            ranges = labels.get(block)
            if ranges is not None:
                names |= dict.fromkeys(sorted(name.name for name in ranges.of(lo, hi)))
        if names:
            first, *rest = names
            return f"{first} +{len(rest)}" if rest else first
    return ""
