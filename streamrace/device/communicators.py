"""Keeps a process group's communicators as one of its ranks has them: their streams and their collectives' numbers.

As in NCCL, a group has a communicator for each device that the process uses, and one for each direction between ranks.
In the trace each is a group of its own, in which collectives are numbered; the numbers are the same on all its ranks.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from streamrace.device import collectives, streams, tracing, work
from streamrace.device.library import functions
from streamrace.trace.records import Group


class Direction(NamedTuple):
    """From one rank to another (both global): the ranks, the group's number, the link's name, and the stream."""

    ranks: tuple[int, int]
    group: int
    link: str
    stream: streams.Stream


class Communicators:
    """The communicators of the group ``name`` of these global ranks. ``urgent``: their streams have a high priority."""

    def __init__(self, name: str, ranks: tuple[int, ...], *, urgent: bool) -> None:
        self._name, self._ranks, self._urgent = name, ranks, urgent
        self.group = self._declare("", ranks)
        self.link = f"nccl {','.join(map(str, ranks))}"
        self._streams: dict[int, streams.Stream] = {}  # by device
        self._devices: list[int] = []  # of a process with several, in the order of their first use
        self._directions: dict[int, Direction] = {}
        self._numbers: dict[int, int] = {}

    def here(self) -> int:
        """Return the number of the current device's communicator."""
        if functions().most() == 1:
            return self.group
        index = functions().index()
        if index not in self._devices:
            self._devices.append(index)
        place = self._devices.index(index)  # the same on all ranks, whose devices have other numbers
        return self._declare(f":{place}", self._ranks, self._ranks) if place else self.group

    def stream(self) -> streams.Stream:
        """Return the stream of the current device's communicator, taken from torch's pool on first use."""
        index = functions().index() if functions().most() > 1 else 0
        stream = self._streams.get(index)
        if stream is None:
            stream = streams.Stream(streams.current().device, -1 if self._urgent else 0)
            tracing.streams.setdefault(stream.stream_id, f"{self.link} on cuda:{index}" if self._streams else self.link)
            self._streams[index] = stream
        return stream

    def direction(self, source: int, target: int) -> Direction:
        """Return the direction between two ranks of the group, whose stream is of the device of its first message."""
        pair = (self._ranks[source], self._ranks[target])
        group = self._declare(f":{source}>{target}", pair, self._ranks)
        link = f"nccl {pair[0]}>{pair[1]}"
        if group not in self._directions:
            self._directions[group] = Direction(pair, group, link, streams.hidden(link))
        return self._directions[group]

    def next_number(self, group: int) -> int:
        """Return the number of the group's next collective. One that a CUDA graph captures has none yet."""
        if work.capturing():
            return collectives.CAPTURED
        self._numbers[group] = self._numbers.get(group, 0) + 1
        return self._numbers[group]

    def rename(self, name: str) -> None:
        """Rename the group: reports show its streams, and a timing stretches its link, by this name."""
        self.link = name
        for stream in self._streams.values():
            stream.rename(name)

    def _declare(self, suffix: str, ranks: tuple[int, ...], origin: tuple[int, ...] = ()) -> int:
        number = zlib.crc32(f"{self._name}:{self._ranks}{suffix}".encode()) & 0x7FFFFFFF
        tracing.groups.setdefault(number, Group(number, ranks, origin))
        return number
