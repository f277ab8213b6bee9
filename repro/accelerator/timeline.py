"""Virtual time: when the work that the host issues starts and ends, and in which order it takes effect.

The host has a clock. Issuing work costs it a little; the work itself starts when the host has
issued it, its stream is free and all it waits for is done, as CUDA orders streams. Nothing is executed
when it is issued. Work takes *effect* in order of virtual time, once the host's clock is known to
have passed it, so an effect never sees memory that a later-issued but earlier-ending piece of work
should have changed first.

Most times are known when work is issued. A collective's start is not: it starts when the last of
its ranks arrives, and ranks are separate processes. Its time, and the time of everything behind it,
stays *open* until the arrivals of the others are known (:mod:`repro.accelerator.exchange`). A rank
only stops to wait for them when its own host would be blocked, or asks whether an event has passed.
This is conservative parallel discrete-event simulation (Chandy and Misra 1979): a rank takes an
effect at time t only if no open work can start before t.

Times are integers, nanoseconds; ties are taken in the order of issue. So a run is a function of the
program and the durations alone, whatever the machine below does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

Effect = Callable[[], None]
_PATIENCE_S = 0.003


class Exchange(Protocol):
    """How ranks tell each other when they arrive at a collective."""

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        """Tell the other members that this rank arrives at the collective at ``arrival``."""

    def arrivals(self, group: int, number: int) -> dict[int, int]:
        """Arrivals of other ranks known so far, by global rank."""

    def forget(self, group: int, number: int) -> None:
        """The collective's start is settled; its arrivals are not asked for again."""

    def floor(self, rank: int) -> int:
        """``rank`` has promised: no collective at which it has not arrived yet starts before this."""

    def promise(self, floor: int) -> None:
        """Tell all ranks that no collective at which this one has not arrived yet starts before ``floor``."""

    def receive(self, timeout: float | None) -> bool:
        """Take in messages; wait for one up to ``timeout`` seconds (None: for ever). True if there was any."""


class Work:
    """A piece of work on a stream: when it starts and ends, as far as known."""

    __slots__ = ("duration", "effect", "end", "issued", "lower", "seq", "start", "waits_for")

    def __init__(self, seq: int, issued: int, duration: int, effect: Effect | None) -> None:
        self.seq = seq
        self.issued = issued
        self.duration = duration
        self.effect = effect
        self.start = -1  # while open: the known part of it
        self.end = -1  # -1 while open
        self.lower = 0  # it does not end (an open collective: start) before this
        self.waits_for: tuple[Work, ...] = ()

    @property
    def bound(self) -> int:
        """It does not end before this."""
        return self.end if self.end >= 0 else self.lower


class CollectiveWork(Work):
    """Work that starts when all members have arrived. Reads its inputs at ``start``."""

    __slots__ = ("arrival", "group", "late", "members", "number", "read")

    def __init__(
        self,
        seq: int,
        issued: int,
        duration: int,
        *,
        read: Effect | None,
        effect: Effect | None,
        group: int,
        number: int,
        members: tuple[int, ...],
        late: int = 0,
    ) -> None:
        super().__init__(seq, issued, duration, effect)
        self.read = read
        self.late = late
        self.group = group
        self.number = number
        self.members = members
        self.arrival = -1

    @property
    def bound(self) -> int:
        return self.end if self.end >= 0 else self.lower + self.duration


class Instant:
    """A point in time that may still be open: the latest of a known time and the ends of some work."""

    __slots__ = ("known", "open")

    def __init__(self, known: int = 0, open: tuple[Work, ...] = ()) -> None:  # noqa: A002 - the word of this module
        self.known = known
        self.open = open

    def settle(self) -> bool:
        """Fold in what is known by now; True when the time is."""
        if self.open:
            still = []
            for work in self.open:
                if work.end < 0:
                    still.append(work)
                elif work.end > self.known:
                    self.known = work.end
            self.open = tuple(still)
        return not self.open

    @property
    def lower(self) -> int:
        """The time is not before this."""
        return max([self.known, *(work.bound for work in self.open)])

    def joined(self, other: Instant) -> Instant:
        """The later of the two."""
        if self.open or other.open:
            both = self.open + tuple(work for work in other.open if work not in self.open)
            return Instant(max(self.known, other.known), both)
        return self if self.known >= other.known else other


class Timeline:
    """One rank's host clock and streams' positions, and the work that has not taken effect yet.

    ``streams`` holds, by stream id, the instant at which the stream is free.
    """

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self.rank = rank
        self.now = 0
        self.streams: list[Instant] = []
        self.effective = 0  # the time of the last effect taken; never goes back
        self._exchange = exchange
        self._seq = 0
        self._ready: list[tuple[int, int, Effect]] = []  # heap by (time, order of issue)
        self._open: list[Work] = []  # in order of issue, so what a piece waits for stands before it
        self._open_collectives: list[CollectiveWork] = []

    def new_stream(self) -> int:
        self.streams.append(Instant())
        return len(self.streams) - 1

    def position(self, stream: int) -> Instant:
        """When all work given to the stream so far is done."""
        instant = self.streams[stream]
        if instant.open:
            instant.settle()
        return Instant(instant.known, instant.open)

    def wait(self, stream: int, instant: Instant) -> None:
        """Later work of ``stream`` starts no earlier than ``instant``."""
        instant.settle()
        self.streams[stream] = self.streams[stream].joined(instant)

    def launch(self, stream: int, duration: int, effect: Effect | None) -> Work:
        """Give work to a stream. The host's clock stands at the moment of issue."""
        tail = self.streams[stream]
        work = self._enqueue(tail, duration, effect)
        self.streams[stream] = Instant(work.end) if work.end >= 0 else Instant(tail.known, (work,))
        return work

    def shadow(self, instant: Instant, effect: Effect) -> None:
        """Let ``effect`` happen at ``instant``, or now if that is past, without taking any stream's time."""
        self._enqueue(instant, 0, effect)

    def _enqueue(self, tail: Instant, duration: int, effect: Effect | None) -> Work:
        self._seq += 1
        work = Work(self._seq, self.now, duration, effect)
        if not tail.open or tail.settle():
            self._settle(work, tail.known)
        else:
            work.start = tail.known  # so far: the known part of it
            work.waits_for = tail.open
            work.lower = max(tail.lower, self.now) + duration
            self._open.append(work)
        return work

    def collective(
        self,
        stream: int,
        duration: int,
        *,
        read: Effect | None,
        effect: Effect | None,
        group: int,
        number: int,
        members: tuple[int, ...],
        late: int = 0,
    ) -> CollectiveWork:
        """This rank's part in collective ``number`` of ``group``; ``members`` are global ranks.

        It arrives ``late`` nanoseconds after all that it waits for is done.
        """
        self._seq += 1
        work = CollectiveWork(
            self._seq,
            self.now,
            duration,
            read=read,
            effect=effect,
            group=group,
            number=number,
            members=members,
            late=late,
        )
        tail = self.streams[stream]
        tail.settle()
        work.waits_for = tail.open
        work.lower = max(tail.lower, self.now) + late
        work.arrival = -1
        if len(members) == 1 and not tail.open:
            self._settle(work, max(tail.known, self.now) + late)
        else:
            work.start = tail.known  # so far: the known part of its arrival
            self._open.append(work)
            self._open_collectives.append(work)
            self._exchange.receive(0.0)
            self._progress()
        self.streams[stream] = Instant(work.end) if work.end >= 0 else Instant(tail.known, (work,))
        return work

    # -- what the host asks for -------------------------------------------------------------------

    def synchronize(self, instant: Instant) -> None:
        """Block the host until ``instant``, and take every effect up to then."""
        while not instant.settle():
            # Nothing that has an effect before the earliest open collective can come after `instant`.
            if not self._take_effects(None):
                self._wait_for_others(max(self.now, self._lower(instant)))
        self.now = max(self.now, instant.known)
        self.catch_up()

    def passed(self, instant: Instant) -> bool:
        """Has ``instant`` passed by the host's clock? Does not move the clock."""
        while not instant.settle():
            if self._lower(instant) > self.now:
                return False
            self._take_effects(self.now)
            if not instant.settle() and self._lower(instant) <= self.now:
                self._wait_for_others(self.now)
        return instant.known <= self.now

    def catch_up(self) -> None:
        """Take every effect up to the host's clock."""
        while not self._take_effects(self.now):
            self._wait_for_others(self.now)

    def drain(self) -> None:
        """Block the host until everything issued is done, and tell the others that nothing more comes."""
        last = Instant()
        for stream in range(len(self.streams)):
            last = last.joined(self.position(stream))
        self.synchronize(last)
        while self._ready:
            self.now = max(self.now, self._ready[0][0])
            self.catch_up()

    # -- the engine -------------------------------------------------------------------------------

    def _settle(self, work: Work, free: int) -> None:
        """All that ``work`` waits for is done at ``free``: it has a start and an end, and can take effect."""
        work.start = start = max(work.issued, free)
        work.end = work.lower = end = start + work.duration
        work.waits_for = ()
        if work.effect is not None:
            heapq.heappush(self._ready, (end, work.seq, work.effect))
            work.effect = None
        if isinstance(work, CollectiveWork) and work.read is not None:
            heapq.heappush(self._ready, (start, work.seq, work.read))
            work.read = None

    def _progress(self) -> None:
        """Settle what can be settled. One pass in the order of issue is enough."""
        still: list[Work] = []
        for work in self._open:
            free = work.start
            waits = []
            for other in work.waits_for:
                if other.end < 0:
                    waits.append(other)
                elif other.end > free:
                    free = other.end
            if waits:
                work.start, work.waits_for = free, tuple(waits)
                still.append(work)
            elif not isinstance(work, CollectiveWork):
                self._settle(work, free)
            elif not self._meet(work, free):
                still.append(work)
        if len(still) != len(self._open):
            self._open = still
            self._open_collectives = [work for work in still if isinstance(work, CollectiveWork)]

    def _meet(self, work: CollectiveWork, free: int) -> bool:
        """This rank has arrived; settle the collective if the others have."""
        if work.arrival < 0:
            work.arrival = max(free, work.issued) + work.late
            self._exchange.post(work.group, work.number, work.members, work.arrival)
        arrivals = self._exchange.arrivals(work.group, work.number)
        if len(arrivals) < len(work.members) - 1:
            return False
        self._exchange.forget(work.group, work.number)
        self._settle(work, max(work.arrival, *arrivals.values()) if arrivals else work.arrival)
        return True

    def _earliest_start(self, work: CollectiveWork) -> int:
        """An open collective does not start before this."""
        lower = max(work.arrival, work.lower)
        arrivals = self._exchange.arrivals(work.group, work.number)
        for member in work.members:
            if member != self.rank:
                known = arrivals.get(member)
                lower = max(lower, self._exchange.floor(member) if known is None else known)
        work.lower = lower
        return lower

    def _lower(self, instant: Instant) -> int:
        """A bound for an open instant, with what the others have said by now."""
        self._raise_bounds()
        return instant.lower

    def _raise_bounds(self) -> None:
        for work in self._open:
            start = max([work.issued, work.start, *(other.bound for other in work.waits_for)])
            if isinstance(work, CollectiveWork):
                work.lower = max(work.lower, start + work.late)
                self._earliest_start(work)
            else:
                work.lower = start + work.duration

    def _take_effects(self, limit: int | None) -> bool:
        """Take effects up to ``limit`` (None: up to what is open). False if open work stands before ``limit``.

        With None it returns after each message, as that may have moved what is open.
        """
        ready = self._ready
        while True:
            bound = min((self._earliest_start(work) for work in self._open_collectives), default=None)
            taken = False
            while ready and (limit is None or ready[0][0] <= limit) and (bound is None or ready[0][0] < bound):
                when, _, effect = heapq.heappop(ready)
                if when < self.effective:
                    raise AssertionError(f"an effect at {when} ns comes after one at {self.effective} ns")
                self.effective = when
                effect()
                taken = True
            if bound is None or (limit is not None and bound > limit):
                return True
            if self._exchange.receive(0.0):
                self._progress()
                if limit is None:
                    return True
            elif not taken:
                return False

    def _wait_for_others(self, resume: int) -> None:
        """Something open stands in the way: wait for a message. The host issues nothing until after ``resume``.

        Before that, promise that no collective to which this rank has not come starts earlier than it
        can. Ranks that wait in a circle let each other on by it, as the earliest of them is promised a
        later time by all others (the null messages of Chandy and Misra). Most waits are over before that:
        a promise wakes all the others, so it is given only when nothing comes for a moment. What is computed
        does not depend on it.
        """
        if self._exchange.receive(_PATIENCE_S):
            self._progress()
            return
        self._raise_bounds()
        unseen = [work.lower for work in self._open_collectives if work.arrival < 0]
        self._exchange.promise(min([resume + 1, *unseen]))
        self._exchange.receive(None)
        self._progress()
