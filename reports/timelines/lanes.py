"""What timelines of a trace share: the host's clock, and the order in which streams stand below each other."""

from __future__ import annotations

from streamrace.trace.records import Alloc, Collective, End, Free, HostStep, HostWait, Launch, TraceRecord

HOST = "host"  # the lane of what the host did


def host_time(record: TraceRecord) -> int:
    """Where the host's clock stood at this record; -1 if it does not tell."""
    if isinstance(record, (Launch, Collective)):
        return record.issued
    if isinstance(record, (Alloc, Free, HostWait, HostStep, End)):
        return record.time
    return -1


def lane(name: str) -> tuple[int, str]:
    """To sort by: the host, compute, then what helps it, then the groups."""
    order = 0 if name == HOST else 1 if name == "compute" else 3 if name.startswith("nccl") else 2
    return order, name
