"""How ranks tell each other when they arrive at a collective, and what they promise not to do.

One pipe per rank; all other ranks write to it, small records that the system never tears apart
(POSIX: writes of up to PIPE_BUF bytes are atomic). A pipe may fill up while its rank computes: who
finds it full takes in its own messages meanwhile, so two ranks never wait to write to each other.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_RECORD = struct.Struct("<iiqq")
_PROMISE = -1
_NEVER = 1 << 62


@dataclass(frozen=True)
class Links:
    """The pipes between all ranks, made before the ranks are forked."""

    readers: tuple[int, ...]
    writers: tuple[int, ...]

    @classmethod
    def make(cls, world: int) -> Links:
        pairs = [os.pipe() for _ in range(world)]
        return cls(tuple(reader for reader, _ in pairs), tuple(writer for _, writer in pairs))

    def close(self) -> None:
        for descriptor in (*self.readers, *self.writers):
            os.close(descriptor)


class Alone:
    """The exchange of a program that is its own only rank."""

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        if len(members) > 1:
            raise RuntimeError("a collective of several ranks needs links between them: start them with repro.cluster")

    def arrivals(self, group: int, number: int) -> dict[int, int]:
        return {}

    def forget(self, group: int, number: int) -> None:
        pass

    def floor(self, rank: int) -> int:
        return _NEVER

    def promise(self, floor: int) -> None:
        pass

    def receive(self, timeout: float | None) -> bool:
        if timeout is None:
            raise RuntimeError("waits for another rank, but there is none")
        return False


class PipeExchange:
    """Arrivals and promises over :class:`Links`. See :class:`repro.accelerator.timeline.Exchange`."""

    def __init__(self, rank: int, links: Links) -> None:
        self._rank = rank
        self._reader = links.readers[rank]
        self._writers = dict(enumerate(links.writers))
        del self._writers[rank]
        self._arrivals: dict[tuple[int, int], dict[int, int]] = {}
        self._floors = dict.fromkeys(self._writers, 0)
        self._promised = 0
        self._nothing: dict[int, int] = {}
        self._taken = False  # messages were taken in while sending, and receive() has not told yet
        for descriptor in (self._reader, *self._writers.values()):
            os.set_blocking(descriptor, False)

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        self._send([member for member in members if member != self._rank], group, number, arrival)

    def arrivals(self, group: int, number: int) -> dict[int, int]:
        return self._arrivals.get((group, number), self._nothing)

    def forget(self, group: int, number: int) -> None:
        self._arrivals.pop((group, number), None)

    def floor(self, rank: int) -> int:
        return self._floors[rank]

    def promise(self, floor: int) -> None:
        if floor > self._promised:
            self._promised = floor
            self._send(list(self._writers), _PROMISE, 0, floor)

    def receive(self, timeout: float | None) -> bool:
        while not self._take() and not self._taken:
            if timeout == 0.0 or not select.select([self._reader], [], [], timeout)[0]:
                return False
        self._taken = False
        return True

    def _take(self) -> bool:
        try:
            data = os.read(self._reader, _RECORD.size * 512)
        except BlockingIOError:
            return False
        for group, number, sender, value in _RECORD.iter_unpack(data):
            if group == _PROMISE:
                self._floors[sender] = max(self._floors[sender], value)
            else:
                self._arrivals.setdefault((group, number), {})[sender] = value
        return True

    def _send(self, ranks: Sequence[int], group: int, number: int, value: int) -> None:
        message = _RECORD.pack(group, number, self._rank, value)
        for rank in ranks:
            writer = self._writers[rank]
            while True:
                try:
                    os.write(writer, message)
                    break
                except BlockingIOError:
                    select.select([self._reader], [writer], [])
                    self._taken |= self._take()
