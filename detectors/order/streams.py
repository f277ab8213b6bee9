"""Computes the order within one rank: its host, its streams, and the markers that they wait for.

The rules are those of torch's CSAN (``_sanitizer.py``), in the words of :mod:`streamrace.trace`: a launch orders
host to stream, a record and a wait stream to stream, a host wait stream to host. No other order is added.
"""

from __future__ import annotations

from streamrace.detectors.order.clocks import Snapshot, StreamClock, Threads
from streamrace.trace.records import HostWait, Record, TraceError, Wait


class StreamOrder:
    """The clocks of one rank's host and streams. ``streams``: by number, from their first use."""

    def __init__(self, rank: int, threads: Threads) -> None:
        self.rank = rank
        self.host = threads.host()
        self.streams: dict[int, StreamClock] = {}
        self.markers: dict[int, tuple[Snapshot, int]] = {}  # with the time, in this run, at which the marker is passed
        self._threads = threads
        self._highest_marker = -1

    def on(self, number: int) -> StreamClock:
        """Return the stream, ordered after what the host knows: every enqueued operation goes through here."""
        stream = self.streams.get(number)
        if stream is None:
            stream = self.streams[number] = self._threads.stream()
        stream.enqueue(self.host)
        return stream

    def record(self, record: Record) -> None:
        stream = self.on(record.stream)
        position, marker = stream.position(), record.marker
        self._highest_marker = max(self._highest_marker, marker)
        if self.host.known[position.thread] < position.epoch:  # otherwise waiting for it never orders anything
            self.markers[marker] = (position, stream.done)
            stream.unforgotten.append((position.epoch, marker))

    def _position(self, marker: int) -> tuple[Snapshot, int] | None:
        """Return the marker's position, or None if all later work comes after it anyway."""
        position = self.markers.get(marker)
        if position is None and marker > self._highest_marker:
            raise TraceError(f"rank {self.rank} waits for marker {marker}, which no record has made")
        return position

    def wait(self, record: Wait) -> None:
        position = self._position(record.marker)
        if position is not None:
            stream = self.on(record.stream)
            stream.wait(position[0])
            stream.done = max(stream.done, position[1])

    def host_wait(self, record: HostWait) -> None:
        position = self._position(record.marker)
        if position is None:
            return
        self.host.wait(position[0])
        # Whatever the host has waited for comes before all work that is still to be launched, also on streams
        # that do not exist yet: such markers can be forgotten. This bounds the memory for markers.
        known, markers = self.host.known, self.markers
        for stream in self.streams.values():
            unforgotten, epoch = stream.unforgotten, known[stream.thread]
            while unforgotten and unforgotten[0][0] <= epoch:
                markers.pop(unforgotten.popleft()[1], None)
