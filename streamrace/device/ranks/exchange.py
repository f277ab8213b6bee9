"""Exchanges the ranks' arrivals at collectives, and their promises not to arrive before a time.

Each rank has a pipe, to which the others write small records that the system never splits (POSIX: writes of up to
PIPE_BUF bytes are atomic). The ranks of a process group find each other's pipes through its store, however they were
started, and open them through the list of each process's files (proc(5)): named pipes would be left over from killed
ranks. A pipe may fill up while its rank computes: a rank that finds it full reads its own messages meanwhile, so two
ranks never wait to write to each other.

With its arrival a rank announces its call (:mod:`.agreed`). If two ranks make different calls, or a collective waits
for a rank that has ended, nothing can go on: both ranks get an error at once, with their lines. A rank announces its
end by a promise, if it can; otherwise its pipe shows it, which then has no reader.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Sequence

from torch.distributed import Store

from streamrace.device.ranks import mismatches
from streamrace.device.work import arrived, broken, promised

_RECORD = struct.Struct("<iiqqH")  # the last field is the number of bytes that follow
_PROMISE, _BROKEN = -1, -2
_AT_ONCE, _LONGEST = 1 << 16, 4000
_DYING_S = 0.3  # the system closes a dying process's files in any order: other connections may break before its pipe
NEVER = 1 << 62
_Key = tuple[int, int]  # the numbers of a group and of a collective in it


class PipeExchange:
    """Exchanges arrivals and promises over pipes. See :class:`streamrace.device.work.Exchange`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._reader, self._own = os.pipe()  # the own write end keeps the pipe open when other ranks end
        os.set_blocking(self._reader, False)
        self._path = f"/proc/{os.getpid()}/fd/{self._reader}"
        self._writers: dict[int, int] = {}
        self._ready = select.poll()
        self._ready.register(self._reader, select.POLLIN)
        self._promised = 0
        self._taken = False  # True: messages were read while sending, and receive() has not returned since
        self._half = b""  # the beginning of a record whose rest was not read yet
        self._open: dict[
            _Key, tuple[tuple[int, ...], mismatches.AgreedCall]
        ] = {}  # collectives that lack some arrivals
        self._received: dict[_Key, dict[int, bytes]] = {}
        self._posted: set[_Key] = set()
        self._ended: set[int] = set()
        self.problem = ""
        """Reason why no collective can go on; empty if they can."""
        self.follows = False
        """True if the reason is that another rank has ended."""

    def link(self, store: Store, ranks: Sequence[int]) -> None:
        """Connect with the other ranks of a process group, which all call this."""
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
            self._ready.register(self._writers[rank], 0)  # reports only that the pipe has no reader

    def expect(self, group: int, number: int, members: tuple[int, ...], call: mismatches.AgreedCall) -> None:
        """Announce that this rank will post a collective. Raise RuntimeError if another rank's call does not fit."""
        key = group, number
        self._open[key] = members, call
        for sender in list(self._received.get(key, ())):
            self._compare(key, sender)
        self._look_for_ended()
        if self.problem:
            raise RuntimeError(self.problem)

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        _, call = self._open.get((group, number), ((), None))
        for place, member in enumerate(members):
            if member != self.rank:
                payload = mismatches.packed(call.to(place)) if call is not None else b""
                self._send([member], group, number, arrival, payload)
        if call is not None:
            self._posted.add((group, number))
            self._settle((group, number))

    def promise(self, floor: int) -> None:
        if floor > self._promised:
            self._promised = floor
            self._send(list(self._writers), _PROMISE, 0, floor)

    def receive(self, timeout: float | None) -> bool:
        while not self._take() and not self._taken and not self.problem:
            if timeout == 0.0:
                return False
            ready = self._ready.poll(None if timeout is None else timeout * 1000)
            if not ready:
                return False
            self._note_ended(ready)
        self._taken = False
        return True

    def lost(self, members: tuple[int, ...], call: str) -> str:
        """Return why a transfer among ``members`` failed: which of them has ended; empty if none has."""
        until = time.monotonic() + _DYING_S
        while (remaining := until - time.monotonic()) > 0:
            self._note_ended(self._ready.poll(remaining * 1000))
            self._taken |= self._take()
            for rank in members:
                if rank in self._ended:
                    self._break(f"rank {rank} has ended before its part was done in {call}", follows=True)
                    return self.problem
        return ""

    def _take(self) -> bool:
        try:
            data = self._half + os.read(self._reader, _AT_ONCE)
        except BlockingIOError:
            return False
        records, at = [], 0
        while at + _RECORD.size <= len(data):
            *fields, length = _RECORD.unpack_from(data, at)
            end = at + _RECORD.size + length
            if end > len(data):
                break
            records.append((*fields, data[at + _RECORD.size : end]))
            at = end
        self._half = data[at:]
        for group, number, sender, value, payload in records:
            if group == _BROKEN:
                self._break(payload.decode(errors="ignore"))
            elif group == _PROMISE:
                promised(sender, value)
                if value >= NEVER:
                    self._ended.add(sender)
            else:
                self._received.setdefault((group, number), {})[sender] = payload
                if self._compare((group, number), sender):
                    arrived(group, number, sender, value)
                    self._settle((group, number))
        self._look_for_ended()
        return True

    def _compare(self, key: _Key, sender: int) -> bool:
        """Check whether another rank's call fits. If not, stop all collectives here and on that rank."""
        payload = self._received[key][sender]
        if key not in self._open or not payload:
            return True
        members, call = self._open[key]
        own_call, other_call = call.to(members.index(sender)), mismatches.unpacked(payload)
        if not mismatches.differences(own_call, other_call):
            return True
        if not self.problem:
            self._break(mismatches.mismatch((self.rank, own_call), (sender, other_call), _which(key, members)))
            self._send([sender], _BROKEN, 0, 0, self.problem.encode()[:_LONGEST])  # that rank may wait for another
        return False

    def _settle(self, key: _Key) -> None:
        """Forget a collective at which all ranks have arrived."""
        members, _ = self._open.get(key, ((), None))
        if key in self._posted and len(self._received.get(key, ())) == len(members) - 1:
            del self._open[key], self._received[key]
            self._posted.discard(key)

    def _look_for_ended(self) -> None:
        """Stop all collectives if one of them waits for a rank that has ended."""
        for key, (members, call) in list(self._open.items()) if self._ended else ():
            come = self._received.get(key, {})
            for rank in members:
                if rank in self._ended and rank not in come:
                    waits = f"rank {self.rank} waits for it in {call.to(0)} ({_which(key, members)})"
                    self._break(f"rank {rank} has ended, and {waits}", follows=True)

    def _note_ended(self, ready: list[tuple[int, int]]) -> None:
        ended = {file for file, _ in ready} - {self._reader}
        for rank, writer in list(self._writers.items()):
            if writer in ended:
                self._ready.unregister(writer)
                while self._take():  # messages from before its end
                    self._taken = True
                self._ended.add(rank)
        self._look_for_ended()

    def _break(self, why: str, *, follows: bool = False) -> None:
        if not self.problem:
            self.problem, self.follows = f"streamrace: {why.removeprefix('streamrace: ')}", follows
            broken(self.problem)

    def _send(self, ranks: Sequence[int], group: int, number: int, value: int, payload: bytes = b"") -> None:
        message = _RECORD.pack(group, number, self.rank, value, len(payload)) + payload
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
                    break  # the rank has ended, and needs nothing more


def _which(key: _Key, members: tuple[int, ...]) -> str:
    return f"collective {key[1]} of the group of ranks {', '.join(map(str, members))}"
