"""Computes what each wait of a run costs in virtual time: the delay that only this wait causes.

* wait of a stream: the next work of the stream begins when it is issued, the stream's earlier work is done, and
  everything that the stream waits for is done. The cost is how much earlier it could have begun without this wait. (Of
  two waits that hold it up equally, neither costs anything alone.)
* wait of the host: how long the host stood still in it;
* ``record_stream``: how long memory was kept after its free for the named streams. Nothing stands still for that, so
  it costs the program no time.

These are local delays, not how much longer the program took: work that waited elsewhere instead
would have been no faster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from streamrace.detectors.confidence.waits import Waits, WaitSite
from streamrace.trace.records import Collective, Free, HostWait, Launch, Record, RecordStream, TraceRecord, Wait


class Delays:
    """Sums up delays. :meth:`feed` it all ranks' records, each rank's in order, once ``waits`` has them all.

    ``held``: nanoseconds by site, of all ranks together.
    """

    def __init__(self, waits: Waits) -> None:
        self.held: Counter[WaitSite] = Counter()
        self._waits = waits
        self._ranks: dict[int, _Rank] = defaultdict(_Rank)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks[rank]
        for record in records:
            if isinstance(record, (Launch, Collective)):
                self._work(state, record)
            elif isinstance(record, Record):
                waited = [done for _, done in state.pending[record.stream]]
                state.markers[record.marker] = max([state.done[record.stream], *waited])
            elif isinstance(record, Wait):
                done = state.markers.get(record.marker, 0)
                state.pending[record.stream].append((self._waits.site_of(rank, record), done))
            elif isinstance(record, HostWait):
                wait_site = self._waits.site_of(rank, record)
                if wait_site is not None and record.began >= 0:
                    self.held[wait_site] += record.time - record.began
            elif isinstance(record, RecordStream):
                state.recorded[record.block].append(record.stream)
            elif isinstance(record, Free):
                self._free(rank, state, record)

    def _work(self, state: _Rank, record: Launch | Collective) -> None:
        pending = state.pending.pop(record.stream, [])
        ready = max(state.done[record.stream], record.issued)
        for at, (wait_site, done) in enumerate(pending):
            ready_without = max([ready, *(other_done for place, (_, other_done) in enumerate(pending) if place != at)])
            if wait_site is not None and done > ready_without:
                self.held[wait_site] += done - ready_without
        state.done[record.stream] = max(record.end, state.done[record.stream])

    def _free(self, rank: int, state: _Rank, record: Free) -> None:
        for stream in state.recorded.pop(record.block, ()):
            for wait_site in self._waits.askers(rank, record.block, stream):
                self.held[wait_site] += max(0, state.done[stream] - record.time)


class _Rank:
    def __init__(self) -> None:
        self.done: dict[int, int] = defaultdict(int)  # by stream: when its work is done
        self.pending: dict[int, list[tuple[WaitSite | None, int]]] = defaultdict(list)
        self.markers: dict[int, int] = {}
        self.recorded: dict[int, list[int]] = defaultdict(list)
