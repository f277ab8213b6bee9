"""Vector clocks of streams and hosts.

A *thread* is one stream of one rank. A clock holds, for each thread, the epoch up to which
everything is ordered before "now" (Lamport 1978 for the relation, Mattern 1989 for the vectors).
An access that ran in epoch ``e`` of thread ``u`` is ordered before every clock with ``known[u] >= e``:
one comparison, the *epoch* test of FastTrack (Flanagan & Freund 2009, section 3).

Three things keep this cheap, as traces have far more launches than synchronisations:

* A stream's own epoch is stored separately from its knowledge of others. A launch counts the epoch up and
  touches no vector; a record takes the vector without copying it.
* A vector is never changed after its creation: a join creates a new one, so markers may share vectors.
  (The one exception is a new thread, for which zeros are appended: the meaning stays the same.)
* The epoch is also counted up whenever a stream learns something. So a clock that knows epoch ``e`` of
  ``u`` knows all that ``u`` knew then, and a join with something already known is skipped.

The host is a clock without an epoch: it carries order (launch, synchronise) and accesses nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

Vector = list[int]


def join(left: Vector, right: Vector) -> Vector:
    """Return the least clock that knows what both know. A shorter vector knows nothing of the later threads."""
    # Not max(a, b): a call for each thread takes three times as long.
    joined = [a if a > b else b for a, b in zip(left, right, strict=False)]  # noqa: FURB136
    shared = len(joined)
    if len(left) != len(right):
        joined += left[shared:] if len(left) > shared else right[shared:]
    return joined


class Snapshot(NamedTuple):
    """A position of a thread: its epoch, and its vector at that time."""

    thread: int
    epoch: int
    known: Vector


class HostClock:
    """The order that a rank's host carries from the work it waited for to the work it launches."""

    __slots__ = ("known", "version")

    def __init__(self, known: Vector) -> None:
        self.known = known
        self.version = 0  # counts the changes of `known`

    def wait(self, position: Snapshot) -> None:
        """Order all later launches after ``position``, which must be new: markers of known positions are forgotten."""
        thread, epoch, known = position
        self.known = join(self.known, known)
        self.known[thread] = epoch
        self.version += 1


class StreamClock:
    """One stream's clock: ``epoch`` is its own time, ``known[u]`` the epoch it knows of thread ``u``.

    ``known[self.thread]`` may lag behind ``epoch``: a thread's own accesses are always ordered.
    ``done`` is no part of the order: the time, in this run, at which all work enqueued so far is finished.
    """

    __slots__ = ("done", "epoch", "host_version", "known", "snapshot", "thread", "unforgotten")

    def __init__(self, thread: int, known: Vector) -> None:
        self.thread = thread
        self.epoch = 0
        self.done = 0
        self.known = known
        self.host_version = 0  # version of the host's clock that was joined last
        self.snapshot = Snapshot(thread, 0, known)
        self.unforgotten: deque[tuple[int, int]] = deque()  # (epoch, marker) of live markers, oldest first

    def enqueue(self, host: HostClock) -> None:
        """Order whatever is enqueued from now on after everything that the host has waited for."""
        if self.host_version == host.version:
            return
        self.host_version = host.version
        joined = join(self.known, host.known)
        if joined != self.known:
            self.known = joined
            self.epoch += 1

    def position(self) -> Snapshot:
        """Return the stream's current position. All callers share it until the clock changes."""
        if self.snapshot.epoch != self.epoch:
            self.snapshot = Snapshot(self.thread, self.epoch, self.known)
        return self.snapshot

    def wait(self, position: Snapshot) -> None:
        """Order whatever is enqueued from now on after ``position``, a position of a stream."""
        thread, epoch, known = position
        if thread == self.thread or self.known[thread] >= epoch:
            return
        joined = join(self.known, known)
        joined[thread] = epoch
        self.known = joined
        self.epoch += 1

    def learn(self, known: Vector) -> None:
        """Replace the vector by the outcome of a collective; ``known`` may be shared with other streams."""
        self.known = known
        self.epoch += 1


class Threads:
    """Numbers the threads of all ranks, and extends every clock's vector when a thread is added."""

    def __init__(self) -> None:
        self._count = 0
        self._hosts: list[HostClock] = []
        self._streams: list[StreamClock] = []

    def host(self) -> HostClock:
        host = HostClock([0] * self._count)
        self._hosts.append(host)
        return host

    def stream(self) -> StreamClock:
        self._count += 1
        stream = StreamClock(self._count - 1, [0] * self._count)
        for known in [clock.known for clock in self._hosts] + [clock.known for clock in self._streams]:
            known.extend([0] * (self._count - len(known)))  # nothing to do where a vector is shared
        self._streams.append(stream)
        return stream
