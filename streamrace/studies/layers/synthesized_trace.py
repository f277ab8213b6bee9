"""Schedules an order in time: computes when each piece of work runs, and yields records that metrics read like a trace.

The device's rules (:mod:`streamrace.device`, docs/concepts): work starts once it was issued and its stream has reached
it; a wait moves its stream to the event; the collectives of a group run one after the other; the host blocks where it
waits for an event. No other rank is simulated, so all times are known in the order of the host's actions. The host's
own time between two records is that of the recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from streamrace.studies.layers.pattern import Item, LayerPattern
from streamrace.trace.records import (
    Alloc,
    Collective,
    End,
    Free,
    HostStep,
    HostWait,
    Label,
    Launch,
    Phase,
    Record,
    TraceRecord,
    Wait,
)


class SynthesizedTrace:
    """Schedules phases in order. Yields records with new numbers and times, without the memory that work touches.

    ``order``: the recording that is extrapolated: where blocks with a label are allocated.
    """

    def __init__(self, order: LayerPattern) -> None:
        self._places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for phase in order.phases:
            for item in phase.items:
                if isinstance(item.record, Label):
                    places = self._places[item.record.kind, item.whole]
                    if item.block not in places:
                        places.append(item.block)
        self._host = 0
        self._tails: dict[int, int] = defaultdict(int)
        self._links: dict[int, int] = defaultdict(int)  # by group: the end of its last collective
        self._marks: dict[int, list[int]] = defaultdict(list)
        self._alive: dict[tuple[int, int], list[int]] = defaultdict(list)  # blocks, by place and bytes
        self._labelled: set[tuple[int, str, int]] = set()
        self._blocks = self.operations = 0

    def phase(self, phase: Phase, items: Iterable[Item]) -> Iterator[TraceRecord]:
        """Yield the records of a phase."""
        if phase.name != "before":
            yield phase
        for item in items:
            record = self._record(item)
            if record is not None:
                yield record

    def end(self) -> End:
        """Return the end record, at the time when all work has ended."""
        return End(max([self._host, *self._tails.values()]))

    def _record(self, item: Item) -> TraceRecord | None:
        record = item.record
        if isinstance(record, (Launch, Collective)):
            return self._work(record, item)
        if isinstance(record, Alloc):
            self._blocks += 1
            self._alive[item.block, item.sizes[0]].append(self._blocks)
            return record._replace(block=self._blocks, nbytes=item.sizes[0], time=self._host)
        if isinstance(record, Free):
            alive = self._alive[item.block, item.sizes[0]]
            return Free(alive.pop(0), self._host) if alive else None
        if isinstance(record, Label):
            return self._label(record, item)
        if isinstance(record, Record):
            self._marks[record.stream].append(self._tails[record.stream])
        elif isinstance(record, Wait):
            self._tails[record.stream] = max(self._tails[record.stream], self._marked(item))
        elif isinstance(record, HostWait):
            return self._wait(record, item)
        elif isinstance(record, HostStep):
            self._host += item.host
            if record.how == "met":
                ends = self._tails.values() if record.stream < 0 else [self._tails[record.stream]]
                self._host = max([self._host, *ends])
        return None

    def _label(self, record: Label, item: Item) -> Label | None:
        """Assign the label to the first live block of its place that lacks it, so alike blocks get it once each."""
        for place in (item.block, *self._places[record.kind, item.whole]):
            for block in self._alive[place, item.whole]:
                if (block, record.kind, item.at) not in self._labelled:
                    break
            else:
                continue
            break
        else:
            return None
        self._labelled.add((block, record.kind, item.at))
        return record._replace(block=block, lo=item.at, hi=item.at + item.sizes[0])

    def _work(self, record: Launch | Collective, item: Item) -> TraceRecord:
        self._host += item.host
        self.operations += 1
        start = max(self._host, self._tails[record.stream])
        if isinstance(record, Collective):
            start = max(start, self._links[record.group])
        end = self._tails[record.stream] = start + item.lasts
        if isinstance(record, Collective):
            self._links[record.group] = end
        nominal = item.sizes[-1] if isinstance(record, Collective) else record.nominal
        return record._replace(
            op=self.operations, reads=(), writes=(), issued=self._host, start=start, end=end, nominal=nominal
        )

    def _wait(self, record: HostWait, item: Item) -> TraceRecord:
        self._host += item.host
        began = self._host
        self._host = max(self._host, self._marked(item))
        return record._replace(began=began, time=self._host)

    def _marked(self, item: Item) -> int:
        stream, back = item.mark
        marks = self._marks[stream]
        return marks[-1 - back] if back < len(marks) else 0
