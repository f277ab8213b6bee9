"""The order that a run asked for, as a list of waits: of a trace, and of the log of the real build's calls.

A wait is (who waits, for which stream): who is the host, or a stream. A wait of the host for all streams that had work
is one wait for :data:`ALL`, unless there was a single one. Streams are named in the order in which other waits mention
them, as a trace and a log number them differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from streamrace.trace.records import HOST_STREAM, HostWait, Record, StreamName, TraceRecord, Wait

Waiting = tuple[str, str]
HOST, ALL = "host", "all streams"


def of_trace(records: Iterable[TraceRecord]) -> list[Waiting]:
    """Return the waits that a trace has recorded, without queries: the log has none."""
    markers: dict[int, str] = {}
    own: set[str] = set()  # streams that are the host's own accesses to pinned memory
    waits: list[Waiting] = []
    last = -1  # stack of the last wait of the host, if nothing but its marker came after it
    for record in records:
        match record:
            case StreamName(stream, name) if name == HOST_STREAM:
                own.add(str(stream))
            case Record(marker, stream):
                markers[marker] = str(stream)
                continue
            case Wait(stream, marker):
                waits.append((str(stream), markers[marker]))
            case HostWait(marker, how) if markers[marker] in own or how == "query":
                continue
            case HostWait(marker, "synchronize", stack) if stack == last and markers[marker] != "0":
                waits[-1] = (HOST, ALL)  # the device waits for its streams in the order of their numbers
                continue
            case HostWait(marker, _, stack):
                waits.append((HOST, markers[marker]))
                last = stack
                continue
        last = -1
    return list(_renamed(waits))


def of_calls(lines: Iterable[str]) -> list[Waiting]:
    """Return the waits that a log has, without those for an event that was never recorded, which order nothing.

    A copy to pageable memory is a wait of the host, and the synchronisation that torch adds to it is none.
    """
    events: dict[str, str] = {}
    used: set[str] = set()
    waits: list[Waiting] = []
    copied = ""
    for line in lines:
        if line == "end":
            break  # torch waits for the device once more while the process ends
        if not line.startswith("stream") and (found := re.search(r"\bstream (\d+)", line)):
            used.add(found[1])
        before, copied = copied, ""
        if found := re.fullmatch(r"record event (\d+) stream (\d+)", line):
            events[found[1]] = found[2]
        elif (found := re.fullmatch(r"wait stream (\d+) event (\d+)", line)) and found[2] in events:
            waits.append((found[1], events[found[2]]))
        elif (found := re.fullmatch(r"synchronize event (\d+)", line)) and found[1] in events:
            waits.append((HOST, events[found[1]]))
        elif found := re.fullmatch(r"copy device to host \d+ stream (\d+) pageable", line):
            copied = found[1]
            waits.append((HOST, copied))
        elif (found := re.fullmatch(r"synchronize stream (\d+)", line)) and found[1] != before:
            waits.append((HOST, found[1]))
        elif line.startswith("synchronize device"):
            waits.append((HOST, ALL if used - {"0"} else "0"))
    return list(_renamed(waits))


def _renamed(waits: list[Waiting]) -> Iterator[Waiting]:
    names = {HOST: HOST, ALL: ALL}
    for waiting in waits:
        for stream in waiting:
            names.setdefault(stream, f"stream {len(names) - 1}")
        yield names[waiting[0]], names[waiting[1]]
