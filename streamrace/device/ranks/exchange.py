"""How ranks send each other when they arrive at a collective, and what they promise not to do.

Each rank has a pipe; the others write to it, small records that the system never tears apart (POSIX: writes of up to
PIPE_BUF bytes are atomic). The ranks of a process group find each other's pipes through its store, so it does not
matter who started them, and open them where the system shows each process's files (proc(5)): named pipes would lie
about after ranks that were killed. A pipe may fill up while its rank computes: who finds it full takes in its own
messages meanwhile, so two ranks never wait to write to each other.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Sequence

from torch.distributed import Store

from streamrace.device.work import arrived, promised

_RECORD = struct.Struct("<iiqq")
_PROMISE = -1
NEVER = 1 << 62


class PipeExchange:
    """Arrivals and promises over pipes. See :class:`streamrace.device.work.Exchange`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._reader, self._own = os.pipe()  # its own end for writing: it never ends, though other ranks do
        os.set_blocking(self._reader, False)
        self._path = f"/proc/{os.getpid()}/fd/{self._reader}"
        self._writers: dict[int, int] = {}
        self._promised = 0
        self._taken = False  # messages were taken in while sending, and receive() has not returned since

    def link(self, store: Store, ranks: Sequence[int]) -> None:
        """Meet the other ranks of a process group, which all call this."""
        store.set(f"pipe{self.rank}", self._path)
        for rank in ranks:
            path = store.get(f"pipe{rank}").decode()
            if rank == self.rank or rank in self._writers:
                continue
            try:
                self._writers[rank] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                raise RuntimeError(
                    f"streamrace: rank {rank} does not run on this machine ({error.strerror}): the ranks of a "
                    "simulated run are processes of one machine"
                ) from None

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        self._send([member for member in members if member != self.rank], group, number, arrival)

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
                promised(sender, value)
            else:
                arrived(group, number, sender, value)
        return True

    def _send(self, ranks: Sequence[int], group: int, number: int, value: int) -> None:
        message = _RECORD.pack(group, number, self.rank, value)
        for rank in ranks:
            writer = self._writers[rank]
            while True:
                try:
                    os.write(writer, message)
                    break
                except BlockingIOError:
                    select.select([self._reader], [writer], [])
                    self._taken |= self._take()
                except BrokenPipeError:
                    break  # it has ended, and needs nothing more
