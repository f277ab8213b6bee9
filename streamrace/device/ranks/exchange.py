"""How ranks send each other when they arrive at a collective, and what they promise not to do.

Each rank has a pipe; the others write to it, small records that the system never tears apart (POSIX: writes of up to
PIPE_BUF bytes are atomic). The ranks of a process group find each other's pipes through its store, so it does not
matter who started them, and open them where the system shows each process's files (proc(5)): named pipes would lie
about after ranks that were killed. A pipe may fill up while its rank computes: who finds it full takes in its own
messages meanwhile, so two ranks never wait to write to each other.

With its arrival a rank says what it calls (:mod:`.agreed`). Where two ranks call different things, or one has ended to
whom another's collective waits, nothing can go on: both are told at once, with their lines. That a rank has ended it
says by a promise, if it could; else by its pipe, which has no reader any more.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Sequence

from torch.distributed import Store

from streamrace.device.ranks import agreed
from streamrace.device.work import arrived, broken, promised

_RECORD = struct.Struct("<iiqqH")  # and so many bytes behind it
_PROMISE, _BROKEN = -1, -2
_AT_ONCE, _LONGEST = 1 << 16, 4000
_DYING_S = 0.3  # the system closes what a process had open in an order of its own: its end may be seen elsewhere first
NEVER = 1 << 62
_Key = tuple[int, int]  # a group and a number


class PipeExchange:
    """Arrivals and promises over pipes. See :class:`streamrace.device.work.Exchange`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._reader, self._own = os.pipe()  # its own end for writing: it never ends, though other ranks do
        os.set_blocking(self._reader, False)
        self._path = f"/proc/{os.getpid()}/fd/{self._reader}"
        self._writers: dict[int, int] = {}
        self._ready = select.poll()
        self._ready.register(self._reader, select.POLLIN)
        self._promised = 0
        self._taken = False  # messages were taken in while sending, and receive() has not returned since
        self._half = b""  # the begin of a record, of which the rest was not read yet
        self._mine: dict[_Key, tuple[tuple[int, ...], agreed.AgreedCall]] = {}  # what not all ranks have come to
        self._theirs: dict[_Key, dict[int, bytes]] = {}
        self._posted: set[_Key] = set()
        self._ended: set[int] = set()
        self.problem = ""
        """Why no collective can go on; empty: they can."""
        self.follows = False
        """Is that because another rank has ended?"""

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
            self._ready.register(self._writers[rank], 0)  # nothing but that nobody reads there

    def expect(self, group: int, number: int, members: tuple[int, ...], call: agreed.AgreedCall) -> None:
        """This rank calls a collective, and will post it. Raises RuntimeError where another rank does not fit."""
        key = group, number
        self._mine[key] = members, call
        for sender in list(self._theirs.get(key, ())):
            self._compare(key, sender)
        self._look_for_ended()
        if self.problem:
            raise RuntimeError(self.problem)

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        _, call = self._mine.get((group, number), ((), None))
        for place, member in enumerate(members):
            if member != self.rank:
                said = agreed.packed(call.to(place)) if call is not None else b""
                self._send([member], group, number, arrival, said)
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

    def lost(self, members: tuple[int, ...], what: str) -> str:
        """Why a transfer among ``members`` broke off: which of them has ended. Empty: none has."""
        until = time.monotonic() + _DYING_S
        while (left := until - time.monotonic()) > 0:
            self._note_ended(self._ready.poll(left * 1000))
            self._taken |= self._take()
            for rank in members:
                if rank in self._ended:
                    self._break(f"rank {rank} has ended before its part was done in {what}", follows=True)
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
        for group, number, sender, value, said in records:
            if group == _BROKEN:
                self._break(said.decode(errors="ignore"))
            elif group == _PROMISE:
                promised(sender, value)
                if value >= NEVER:
                    self._ended.add(sender)
            else:
                self._theirs.setdefault((group, number), {})[sender] = said
                if self._compare((group, number), sender):
                    arrived(group, number, sender, value)
                    self._settle((group, number))
        self._look_for_ended()
        return True

    def _compare(self, key: _Key, sender: int) -> bool:
        """Does what that rank calls fit? Where it does not, nothing goes on here, nor there."""
        said = self._theirs[key][sender]
        if key not in self._mine or not said:
            return True
        members, call = self._mine[key]
        mine, theirs = call.to(members.index(sender)), agreed.unpacked(said)
        if not agreed.differences(mine, theirs):
            return True
        if not self.problem:
            self._break(agreed.mismatch((self.rank, mine), (sender, theirs), _which(key, members)))
            self._send([sender], _BROKEN, 0, 0, self.problem.encode()[:_LONGEST])  # it may wait for another
        return False

    def _settle(self, key: _Key) -> None:
        """Keep nothing of a collective to which all have come."""
        members, _ = self._mine.get(key, ((), None))
        if key in self._posted and len(self._theirs.get(key, ())) == len(members) - 1:
            del self._mine[key], self._theirs[key]
            self._posted.discard(key)

    def _look_for_ended(self) -> None:
        """Does a collective wait for a rank that has ended?"""
        for key, (members, call) in list(self._mine.items()) if self._ended else ():
            come = self._theirs.get(key, {})
            for rank in members:
                if rank in self._ended and rank not in come:
                    waits = f"rank {self.rank} waits for it in {call.to(0)} ({_which(key, members)})"
                    self._break(f"rank {rank} has ended, and {waits}", follows=True)

    def _note_ended(self, ready: list[tuple[int, int]]) -> None:
        gone = {file for file, _ in ready} - {self._reader}
        for rank, writer in list(self._writers.items()):
            if writer in gone:
                self._ready.unregister(writer)
                while self._take():  # what it said before
                    self._taken = True
                self._ended.add(rank)
        self._look_for_ended()

    def _break(self, why: str, *, follows: bool = False) -> None:
        if not self.problem:
            self.problem, self.follows = f"streamrace: {why.removeprefix('streamrace: ')}", follows
            broken(self.problem)

    def _send(self, ranks: Sequence[int], group: int, number: int, value: int, said: bytes = b"") -> None:
        message = _RECORD.pack(group, number, self.rank, value, len(said)) + said
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


def _which(key: _Key, members: tuple[int, ...]) -> str:
    return f"collective {key[1]} of the group of ranks {', '.join(map(str, members))}"
