"""Provides the common parts of a trace's timelines: the host's clock, and the order of the lanes."""

from __future__ import annotations

from streamrace.trace.records import Alloc, Collective, End, Free, HostStep, HostWait, Launch, TraceRecord

HOST = "host"  # the host's lane


def host_time(record: TraceRecord) -> int:
    """Return the host's clock at this record; -1 if the record has no host time."""
    if isinstance(record, (Launch, Collective)):
        return record.issued
    if isinstance(record, (Alloc, Free, HostWait, HostStep, End)):
        return record.time
    return -1


def lane(name: str) -> tuple[int, str]:
    """Return a sort key: the host, compute, its helper streams, then the groups."""
    order = 0 if name == HOST else 1 if name == "compute" else 3 if name.startswith("nccl") else 2
    return order, name
