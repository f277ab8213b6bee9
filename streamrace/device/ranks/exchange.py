"""Exchanges the ranks' arrivals at collectives, and their promises not to arrive before a time.

Each rank has a pipe, to which the others write small records that the system never splits (POSIX: writes of up to
PIPE_BUF bytes are atomic). The ranks of a process group find each other's pipes through its store, however they were
started, and open them through the list of each process's files (proc(5)): named pipes would be left over from killed
ranks. A pipe may fill up while its rank computes: a rank that finds it full reads its own messages meanwhile, so two
ranks never wait to write to each other.

With its arrival a rank announces its call (:mod:`.mismatches`). A collective for which two ranks make different calls,
or which lacks a rank that has ended, never takes place. A rank announces its end by a promise; if its process dies
instead, its pipe shows it, which then has no reader, and ranks that wait for it get an error at once.

If all ranks wait for arrivals and none is on its way, there is a *standstill*, and all get an error, with their lines.
A rank that waits claims this to all others, with the numbers of arrivals that it has sent to each and received from
each. If the claims of all ranks agree in each pair, no rank has gone on since its claim: the first one to do so would
have received an arrival that its sender did not count, so that sender would have gone on before (after Mattern 1987,
"Algorithms for distributed termination detection"). Promises are not counted: they end no wait for arrivals. So each
rank goes as far as it can, and where it stands does not depend on the machine's timing. If some rank never waits, those
that cannot go on get their error after :data:`_PATIENCE_S`.

A promise wakes all other ranks, and what it changes lets them promise more, by little steps. ``on_demand``, with many
ranks of which most wait for one, a rank sends its promises only to those that ask for one: as their wait may end by it,
or as another rank asks them.
"""

from __future__ import annotations

import concurrent.futures.thread
import os
import select
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence

import torch.autograd.graph
from torch.distributed import Store

from streamrace.device import tracing
from streamrace.device.ranks import mismatches
from streamrace.device.work import arrived, broken, promised
from streamrace.trace import wording
from streamrace.trace.calls import AgreedCall, differences

_RECORD = struct.Struct("<iiqqH")  # the last field is the number of bytes that follow
_PROMISE, _DIFFERS, _CLAIM, _ASK = -1, -2, -3, -4
_PAIR = struct.Struct("<iii")  # of a claim: another rank, the arrivals sent to it, and received (_GONE: it has ended)
_GONE = -1
_AT_ONCE, _LONGEST = 1 << 16, 4000
_DYING_S = 0.3  # the system closes a dying process's files in any order: other connections may break before its pipe
_PATIENCE_S = 30.0
NEVER = 1 << 62
_IDLE = {  # innermost Python frames of threads that wait: in a pool without work, for another thread, for autograd
    (concurrent.futures.thread.__file__, "_worker"),
    (threading.__file__, "_wait_for_tstate_lock"),
    (threading.__file__, "join"),
    (torch.autograd.graph.__file__, "_engine_run_backward"),
}
_Key = tuple[int, int]  # the numbers of a group and of a collective in it
_Claim = dict[int, tuple[int, int]]  # by rank: the arrivals sent to it, and received from it


class PipeExchange:
    """Exchanges arrivals and promises over pipes. See :class:`streamrace.device.work.Exchange`."""

    def __init__(self, rank: int, *, on_demand: bool = False) -> None:
        self.rank, self._on_demand = rank, on_demand
        self._reader, self._own = os.pipe()  # the own write end keeps the pipe open when other ranks end
        os.set_blocking(self._reader, False)
        self._path = f"/proc/{os.getpid()}/fd/{self._reader}"
        self._writers: dict[int, int] = {}
        self._ready = select.poll()
        self._ready.register(self._reader, select.POLLIN)
        self._promised = 0
        self._bounded = self._asked = False  # a promise of others may end this rank's wait; it has asked for one
        self._asking: set[int] = set()  # ranks that have asked for a promise
        self._told: Counter[int] = Counter()  # what each of them was promised
        self._taken = False  # True: messages were read while sending, and receive() has not returned since
        self._half = b""  # the beginning of a record whose rest was not read yet
        self._open: dict[_Key, tuple[tuple[int, ...], AgreedCall, str]] = {}  # collectives that lack some arrivals
        self._received: dict[_Key, dict[int, tuple[int, bytes]]] = {}  # by rank: when it arrives, and its call
        self._unfit: set[_Key] = set()  # collectives for which this rank and another make different calls
        self._posted: set[_Key] = set()
        self._ended: set[int] = set()
        self._died: set[int] = set()  # of those, the ones that did not announce their end
        self._foreseen: tuple[str, _Key] | None = None  # a reason why a collective of this rank never takes place
        self._sent: Counter[int] = Counter()  # arrivals, by rank
        self._got: Counter[int] = Counter()
        self._claims: dict[int, _Claim] = {}  # by rank
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

    def expect(self, group: int, number: int, members: tuple[int, ...], call: AgreedCall, place: str) -> None:
        """Announce that this rank will post a collective. Raise RuntimeError if another rank's call does not fit."""
        key = group, number
        self._open[key] = members, call, place
        for sender, (_, payload) in list(self._received.get(key, {}).items()):
            if payload:
                self._arrives(key, sender)
        self._look_for_ended()
        if self.problem:
            raise RuntimeError(self.problem)

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        _, call, place = self._open.get((group, number), ((), None, ""))
        for at, member in enumerate(members):
            if member != self.rank:
                own = mismatches.AnnouncedCall(call.to(at), place) if call is not None else None
                self._send([member], group, number, arrival, mismatches.packed(own) if own is not None else b"")
                self._sent[member] += 1
        if call is not None:
            self._posted.add((group, number))
            self._settle((group, number))

    def promise(self, floor: int) -> None:
        self._bounded = True
        if floor > self._promised:
            self._promised = floor
            if floor >= NEVER or not self._on_demand:
                self._send(list(self._writers), _PROMISE, 0, floor)
        self._answer()

    def _answer(self) -> None:
        """Send the last promise to the ranks that have asked for one, and have not got it yet."""
        for rank in [rank for rank in self._asking if self._told[rank] < self._promised < NEVER]:
            self._asking.discard(rank)
            self._told[rank] = self._promised
            self._send([rank], _PROMISE, 0, self._promised)

    def stand(self) -> None:
        """Claim to all ranks that this one waits until others arrive.

        No claim is made while a thread of the program's own is at work, which may go on.
        """
        self._bounded = False
        if _others_work():
            return
        claim = {rank: (self._sent[rank], _GONE if rank in self._ended else self._got[rank]) for rank in self._writers}
        if claim != self._claims.get(self.rank):
            self._claims[self.rank] = claim
            payload = b"".join(_PAIR.pack(rank, *counts) for rank, counts in claim.items())
            if len(payload) <= _LONGEST:
                self._send(list(self._writers), _CLAIM, 0, 0, payload)
        self._look_for_standstill()

    def receive(self, timeout: float | None) -> bool:
        if timeout is None and self._on_demand and (self._bounded or self._asking) and not self._asked:
            self._asked = True
            self._send(list(self._writers), _ASK, 0, 0)
        while not self._take() and not self._taken and not self.problem:
            if timeout == 0.0:
                return False
            limit = _PATIENCE_S if timeout is None and self._foreseen is not None else timeout
            ready = self._ready.poll(None if limit is None else limit * 1000)
            if not ready and timeout is None and self._foreseen is not None:
                self._break(*self._foreseen)
            elif not ready:
                return False
            self._note_ended(ready)
        self._taken = False
        return True

    def has_ended(self, rank: int) -> bool:
        """Check whether another rank has ended, as far as its messages were read."""
        return rank in self._ended

    def lost(self, members: tuple[int, ...], call: str) -> str:
        """Return why a transfer among ``members`` failed: which of them has ended; empty if none has."""
        until = time.monotonic() + _DYING_S
        while (remaining := until - time.monotonic()) > 0:
            self._note_ended(self._ready.poll(remaining * 1000))
            self._taken |= self._take()
            for rank in members:
                if rank in self._ended:
                    self._break(f"rank {rank} has ended before its part was done in {call}", None, follows=True)
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
            if group == _DIFFERS:
                self._foreseen = self._foreseen or (payload.decode(errors="ignore"), (value, number))
            elif group == _CLAIM:
                self._claims[sender] = {rank: (sent, got) for rank, sent, got in _PAIR.iter_unpack(payload)}
                self._look_for_standstill()
            elif group == _ASK:
                self._asking.add(sender)
                self._answer()
            elif group == _PROMISE:
                self._asked = False
                promised(sender, value)
                if value >= NEVER:
                    self._ended.add(sender)
                    self._look_for_standstill()
            else:
                self._received.setdefault((group, number), {})[sender] = value, payload
                self._got[sender] += 1
                if not payload:  # no call was announced, so nothing is compared
                    arrived(group, number, sender, value)
                elif (group, number) in self._open:
                    self._arrives((group, number), sender)
                    self._settle((group, number))
        self._look_for_ended()
        return True

    def _arrives(self, key: _Key, sender: int) -> None:
        """Let another rank arrive if its call fits. If not, tell that rank: the collective never takes place."""
        time, payload = self._received[key][sender]
        members, call, place = self._open[key]
        own_call = mismatches.AnnouncedCall(call.to(members.index(sender)), place)
        other_call = mismatches.unpacked(payload)
        if not differences(own_call.call, other_call.call):
            arrived(*key, sender, time)
            return
        why = mismatches.mismatch((self.rank, own_call), (sender, other_call), _which(key, members))
        self._foreseen = self._foreseen or (why, key)
        self._unfit.add(key)
        # It may have no arrival of this rank to compare with, as this rank's call is behind another one.
        self._send([sender], _DIFFERS, key[1], key[0], why.encode()[:_LONGEST])

    def _settle(self, key: _Key) -> None:
        """Forget a collective at which all ranks have arrived."""
        members, *_ = self._open.get(key, ((), None))
        if key in self._posted and key not in self._unfit and len(self._received.get(key, ())) == len(members) - 1:
            del self._open[key], self._received[key]
            self._posted.discard(key)

    def _look_for_ended(self) -> None:
        """Note that a collective waits for a rank that has ended; stop all if that rank died."""
        for key, (members, call, place) in list(self._open.items()) if self._ended else ():
            for rank in self._missing(key, members):
                if rank not in self._ended:
                    continue
                waits = f"rank {self.rank} waits for it in {call.to(0)} at {place} ({_which(key, members)})"
                why = f"rank {rank} has ended, and {waits}"
                if rank in self._died:
                    self._break(why, key, follows=True)
                self._foreseen = self._foreseen or (why, key)

    def _missing(self, key: _Key, members: tuple[int, ...]) -> list[int]:
        come = self._received.get(key, {})
        return [rank for rank in members if rank not in come and rank != self.rank]

    def _look_for_standstill(self) -> None:
        """Stop all collectives if every rank has claimed that it waits, and no arrival is on its way."""
        if not self._stands_still():
            return
        if self._foreseen is not None and self._foreseen[1] in self._open:
            self._break(*self._foreseen)
            return
        for key, (members, call, place) in self._open.items():
            if key in self._posted and (missing := self._missing(key, members)):
                others = f"{wording.plural_of(len(missing), 'rank')} {wording.every(missing)}"
                where = f"{call.to(0)} at {place} ({_which(key, members)})"
                self._break(f"no rank can go on, and rank {self.rank} waits for {others} in {where}", key)
                return

    def _stands_still(self) -> bool:
        live = {self.rank, *self._writers} - self._ended
        if not live <= self._claims.keys():
            return False
        for rank in live:
            claim = self._claims[rank]
            if any(got != _GONE for other, (_, got) in claim.items() if other not in live):
                return False  # it may still receive something from a rank that has ended
            if any(claim.get(other) != self._claims[other].get(rank, (0, 0))[::-1] for other in live - {rank}):
                return False
        return True

    def _note_ended(self, ready: list[tuple[int, int]]) -> None:
        ended = {file for file, _ in ready} - {self._reader}
        for rank, writer in list(self._writers.items()):
            if writer in ended:
                self._ready.unregister(writer)
                while self._take():  # messages from before its end
                    self._taken = True
                if rank not in self._ended:
                    self._ended.add(rank)
                    self._died.add(rank)
        self._look_for_ended()

    def _break(self, why: str, key: _Key | None, *, follows: bool = False) -> None:
        """Stop all collectives, as this rank's call of ``key`` cannot take place (None: it was under way)."""
        if not self.problem:
            self.problem, self.follows = f"streamrace: {why.removeprefix('streamrace: ')}", follows
            if key in self._open:
                members, call, _ = self._open[key]
                lacks = tuple(self._missing(key, members))
                tracing.note_standstill(*key, call.text(), lacks, self.problem.removeprefix("streamrace: "))
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


def _others_work() -> bool:
    """Check whether another thread of the program may go on. Threads of libraries are daemons, and are not counted."""
    own = threading.current_thread()
    others = [thread.ident for thread in threading.enumerate() if thread is not own and not thread.daemon]
    if not others:
        return False
    frames = sys._current_frames()
    codes = [frames[ident].f_code for ident in others if ident in frames]
    frames.clear()  # it has this function's own frame: the cycle would keep tensors alive until Python finds it
    return any((code.co_filename, code.co_name) not in _IDLE for code in codes)


def _which(key: _Key, members: tuple[int, ...]) -> str:
    return f"collective {key[1]} of the group of ranks {', '.join(map(str, members))}"
