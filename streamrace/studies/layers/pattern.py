"""Extracts the order of a recorded job, phase by phase, and its growth with the number of layers.

Each relevant record of a trace becomes an :class:`Item`: its ``key`` identifies the action (kernel, stream, call stack,
blocks, event that is waited for) in terms that are the same in each layer; its ``sizes`` are the bytes.

* A block is identified by its allocation: the preceding launch or collective, and its index among the allocations that
  follow it. If allocated in the same phase, also by the number of such allocations since.
* An event is identified by its stream and by the number of events recorded there since.
* A parameter's name is taken without its numbers.
* The choice of freed memory for an allocation is left out: it is not part of the program.

:func:`growth` compares three recordings. With p layers more, a phase does the same and some pieces more (*units*: one
for a pass, several where a framework goes over all parameters several times). If these are inserted once more, the
result must be the order of n + 2 p layers, key for key. The items of a unit must have the same sizes each time, and
sizes outside of units must grow by the same with each p layers (flat buffers of all parameters).
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamrace.trace.records import (
    Alloc,
    Collective,
    Export,
    Frame,
    Free,
    Group,
    HostStep,
    HostWait,
    Label,
    Launch,
    Phase,
    Record,
    RecordStream,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
)

_NUMBERS = re.compile(r"\d+")
_MANY = 8  # ranges that one launch touches: more are those of all layers, which are identified by place alone
_FEW = 4  # allocations after one launch: more are those of all layers, which are identified by their sizes
# Records that must agree where a phase continues after a unit: as many as possible, but another unit may begin soon.
_WINDOWS = ((48, 24, 12, 6, 3), (12, 6, 3), (3,), (24, 12, 6, 3), (6, 3))


class Item(NamedTuple):
    """One action of the host. ``host``: nanoseconds of its clock since the item before.

    ``block``: identifies a block by its place of allocation. ``lasts``: of work, nanoseconds. ``mark``: an event, by
    its stream and the number recorded there since. ``at``: offset of a label in its block, of ``whole`` bytes.
    """

    key: int
    record: Any
    sizes: tuple[int, ...]
    host: int
    block: int = 0
    lasts: int = 0
    mark: tuple[int, int] = (0, 0)
    at: int = 0
    whole: int = 0


@dataclass
class PhaseOrder:
    """The actions from one :class:`streamrace.trace.records.Phase` to the next."""

    phase: Phase
    items: list[Item] = field(default_factory=list)

    @property
    def keys(self) -> list[int]:
        return [item.key for item in self.items]


class LayerPattern:
    """The order of a whole recording. ``stacks`` and ``groups``: those that its records refer to."""

    def __init__(self, records: Iterable[TraceRecord]) -> None:
        self.phases = [PhaseOrder(Phase(0, 0, "before"))]
        self.names: list[StreamName] = []
        self.groups: list[Group] = []
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self._places: dict[int, int] = {}
        self._host = 0
        self._blocks: dict[int, tuple[int, int, int]] = {}  # place, phase, number allocated before
        self._nbytes: dict[int, int] = {}
        self._made: dict[tuple[int, int], int] = defaultdict(int)  # number of allocations, by phase and place
        self._marks: dict[int, tuple[int, int]] = {}
        self._marked: dict[int, int] = defaultdict(int)
        self._behind, self._since = 0, 0  # key of the last launch, and allocations since
        for record in records:
            self._take(record)

    def _take(self, record: Any) -> None:
        if isinstance(record, Phase):
            self.phases.append(PhaseOrder(record))
        elif isinstance(record, Stack):
            self.stacks[record.id] = record.frames
            self._places[record.id] = zlib.crc32(repr(record.frames).encode())
        elif isinstance(record, StreamName):
            self.names.append(record)
        elif isinstance(record, Group):
            self.groups.append(record)
        else:
            item = self._item(record)
            if item is not None:
                self.phases[-1].items.append(item)

    def _item(self, record: Any) -> Item | None:
        if isinstance(record, (Launch, Collective)):
            return self._work(record)
        if isinstance(record, Alloc):
            return self._alloc(record)
        if isinstance(record, Free):
            if record.block not in self._blocks:
                return None
            place = self._blocks[record.block][0]
            return Item(_key("free", place), record, (self._nbytes[record.block],), 0, place)
        if isinstance(record, Record):
            self._marked[record.stream] += 1
            self._marks[record.marker] = (record.stream, self._marked[record.stream])
            return Item(_key("record", record.stream), record, (), 0)
        if isinstance(record, Wait):
            mark = self._mark(record.marker)
            return Item(
                _key("wait", record.stream, _near(mark), self._places.get(record.stack)), record, (), 0, mark=mark
            )
        if isinstance(record, HostWait):
            mark = self._mark(record.marker)
            host = self._passed(record.began if record.began >= 0 else record.time)
            self._host = record.time
            key = _key("host waits", record.how, _near(mark), self._places.get(record.stack))
            return Item(key, record, (), host, mark=mark)
        if isinstance(record, HostStep):
            if record.how == "called":  # the next record has this time, too
                return None
            return Item(_key("host", record.how, record.stream), record, (), self._passed(record.time))
        if isinstance(record, Label):
            if record.block not in self._blocks:
                return None
            name = _NUMBERS.sub("#", record.name)
            key = _key("label", record.kind, name)  # written by the tool, not part of the program
            place, nbytes = self._blocks[record.block][0], self._nbytes[record.block]
            return Item(key, record, (record.hi - record.lo,), 0, place, at=record.lo, whole=nbytes)
        if isinstance(record, RecordStream):
            return Item(_key("record_stream", *self._name(record.block), record.stream), record, (), 0)
        if isinstance(record, Export):
            return Item(_key("export", record.how, self._places.get(record.stack)), record, (), 0)
        return None

    def _work(self, record: Launch | Collective) -> Item:
        touched = (*record.reads, *record.writes)
        sizes = tuple(access[2] - access[1] for access in touched)
        if len(touched) > _MANY:
            blocks: Any = sorted({self._name(block)[0] for block in {access[0] for access in touched}})
            sizes = (len(touched), sum(sizes))
        else:
            blocks = tuple(self._name(access[0]) for access in touched)
        fixed = (type(record).__name__, record.stream, record.kernel, self._places.get(record.stack))
        key = _key(*fixed, blocks)
        if isinstance(record, Collective):
            key, sizes = _key(key, record.group, record.root), (*sizes, record.nominal)
        self._behind, self._since = _key(*fixed), 0  # without its blocks: a name may not distinguish all earlier ones
        return Item(key, record, sizes, self._passed(record.issued), lasts=record.end - record.start)

    def _alloc(self, record: Alloc) -> Item:
        self._since += 1
        turn: Any = self._since if self._since <= _FEW else ("more", record.nbytes)
        place = _key(self._behind, turn, record.stream, record.dtype)
        key = (len(self.phases), place)
        self._made[key] += 1
        self._nbytes[record.block] = record.nbytes
        phase = len(self.phases) if self._since <= _FEW else -1
        self._blocks[record.block] = (place, phase, self._made[key])
        return Item(_key("alloc", place), record, (record.nbytes,), 0, place)

    def _name(self, block: int) -> tuple[int, int]:
        place, phase, number = self._blocks.get(block, (0, 0, 0))
        if phase != len(self.phases) or self.phases[-1].phase.step == 0:
            return place, -1
        return place, self._made[phase, place] - number

    def _mark(self, marker: int) -> tuple[int, int]:
        stream, number = self._marks.get(marker, (-1, 0))
        return stream, self._marked[stream] - number if stream >= 0 else 0

    def _passed(self, now: int) -> int:
        passed, self._host = now - self._host, now
        return passed


class Repeat(NamedTuple):
    """A unit that repeats with each p layers: ``length`` items; its last copy ends at ``end`` in the phase."""

    end: int
    length: int


class Irregular(Exception):
    """The order does not repeat from layer to layer; the message says where."""


@dataclass(frozen=True)
class Growth:
    """The growth of a phase. ``units``: in the third recording, where each occurs twice. ``grown``: by index of an item
    outside of units, the growth of its sizes with each p layers, and of its duration in nanoseconds. ``fewer``: the
    corresponding items with p layers less (both copies of a unit correspond to the same items).
    """

    order: PhaseOrder
    units: tuple[Repeat, ...]
    grown: dict[int, tuple[tuple[int, ...], int]]
    fewer: tuple[Item, ...]

    def extended(self, times: int) -> Iterator[Item]:
        """Yield the items of the phase with ``times`` p layers more than in the third recording."""
        items, at = self.order.items, 0
        for unit in (*self.units, Repeat(len(items), 0)):
            first = unit.end - 2 * unit.length
            for number in range(at, first):
                yield self._grown(number, times)
            for copy in range(2 + times if unit.length else 0):
                for number in range(first, first + unit.length):
                    yield self._copied(number, number + unit.length, copy, times)
            at = unit.end

    def _grown(self, number: int, times: int) -> Item:
        item, before = self.order.items[number], self.fewer[number]
        back = item.mark[1] + times * (item.mark[1] - before.mark[1])
        at = item.at + times * (item.at - before.at)
        nbytes = item.whole + times * (item.whole - before.whole)
        sizes, lasts = item.sizes, item.lasts
        if number in self.grown:
            more, longer = self.grown[number]
            sizes = tuple(size + times * gain for size, gain in zip(sizes, more, strict=True))
            lasts += times * longer
        return item._replace(mark=(item.mark[0], max(back, 0)), at=at, whole=nbytes, sizes=sizes, lasts=lasts)

    def _copied(self, number: int, next_: int, copy: int, times: int) -> Item:
        item, behind, before = self.order.items[number], self.order.items[next_], self.fewer[number]
        back = item.mark[1] + copy * (behind.mark[1] - item.mark[1]) + times * (item.mark[1] - before.mark[1])
        at = item.at + copy * (behind.at - item.at) + times * (item.at - before.at)
        nbytes = item.whole + times * (item.whole - before.whole)
        return (behind if copy else item)._replace(mark=(item.mark[0], max(back, 0)), at=at, whole=nbytes)


def growth(one: LayerPattern, two: LayerPattern, three: LayerPattern) -> list[Growth]:
    """Compute the growth of each phase from n to n + p layers, checked against n + 2 p. Raises :class:`Irregular`."""
    shapes = {tuple(tuple(phase.phase) for phase in order.phases) for order in (one, two, three)}
    if len(shapes) > 1:
        raise Irregular("the phases of a step are not the same for each number of layers")
    return [_growth(*phases, three.stacks) for phases in zip(one.phases, two.phases, three.phases, strict=True)]


def _growth(one: PhaseOrder, two: PhaseOrder, three: PhaseOrder, stacks: dict[int, tuple[Frame, ...]]) -> Growth:
    where = f"in {three.phase.name} of step {three.phase.step}"
    problem = Irregular("")
    for windows in _WINDOWS:
        try:
            return _predicted(one, two, three, windows, where, stacks)
        except Irregular as irregular:
            problem = irregular
    raise problem


def _predicted(
    one: PhaseOrder,
    two: PhaseOrder,
    three: PhaseOrder,
    windows: Sequence[int],
    where: str,
    stacks: dict[int, tuple[Frame, ...]],
) -> Growth:
    units, stuck = _units(one.items, two.items, windows)
    if stuck is not None:
        description = _description(two.items[min(stuck, len(two.items) - 1)], stacks)
        raise Irregular(f"{where} more layers do not add whole repeating units, from {description} on")
    repeats: list[int] = []  # for each item of the third recording, the index of the item of the second that it repeats
    twice: list[Repeat] = []
    at = 0
    for end, length in units:
        repeats += [*range(at, end), *range(end - length, end)]
        twice.append(Repeat(len(repeats), length))
        at = end
    repeats += range(at, len(two.items))
    for number, (index, item) in enumerate(zip(repeats, three.items, strict=False)):
        if two.items[index].key != item.key:
            raise Irregular(f"{where} {_description(item, stacks)} is not what fewer layers predict (record {number})")
    if len(repeats) != len(three.items):
        raise Irregular(f"{where} there are {len(three.items)} records, but fewer layers predict {len(repeats)}")
    grown = _grown(one, two, three, units, where, stacks)
    return Growth(three, tuple(twice), grown, tuple(two.items[index] for index in repeats))


def _grown(
    one: PhaseOrder,
    two: PhaseOrder,
    three: PhaseOrder,
    units: Sequence[Repeat],
    where: str,
    stacks: dict[int, Any],
) -> dict[int, tuple[tuple[int, ...], int]]:
    grown: dict[int, tuple[tuple[int, ...], int]] = {}
    first = second = third = 0
    for end, length in [*units, Repeat(len(two.items), 0)]:
        while second < end - length:
            sizes = [recorded.items[at].sizes for recorded, at in ((one, first), (two, second), (three, third))]
            lasts = [recorded.items[at].lasts for recorded, at in ((one, first), (two, second), (three, third))]
            if sizes[0] != sizes[1] or sizes[1] != sizes[2] or lasts[1] != lasts[2]:
                more = tuple(after - before for before, after in zip(sizes[1], sizes[2], strict=True))
                if more != tuple(after - before for before, after in zip(sizes[0], sizes[1], strict=True)):
                    description = _description(three.items[third], stacks)
                    raise Irregular(f"{where} {description} does not grow by the same with each layer")
                grown[third] = (more, lasts[2] - lasts[1])
            first, second, third = first + 1, second + 1, third + 1
        for copy in range(2):
            for at in range(length):
                if two.items[second + at].sizes != three.items[third + copy * length + at].sizes:
                    description = _description(three.items[third + copy * length + at], stacks)
                    raise Irregular(f"{where} {description} has another size in another layer")
        second, third = second + length, third + 2 * length
    return grown


def _near(mark: tuple[int, int]) -> tuple[int, int]:
    """Cap the count: of many events that are waited for in turn only the last few are distinguished."""
    return mark[0], min(mark[1], _FEW)


def _units(small: Sequence[Item], large: Sequence[Item], windows: Sequence[int]) -> tuple[list[Repeat], int | None]:
    """Return the units of ``large`` whose removal gives ``small``; and the index at which this fails, or None."""
    fewer, more = [item.key for item in small], [item.key for item in large]
    units: list[Repeat] = []
    at_fewer = at_more = 0
    while at_fewer < len(fewer) or at_more < len(more):
        if at_fewer < len(fewer) and at_more < len(more) and fewer[at_fewer] == more[at_more]:
            at_fewer, at_more = at_fewer + 1, at_more + 1
            continue
        length = _resumes(fewer, at_fewer, more, at_more, windows)
        if length is None:
            return units, at_more
        units.append(Repeat(at_more + length - _earlier(small[:at_fewer], large[: at_more + length], length), length))
        at_more += length
    return units, None


def _earlier(before: Sequence[Item], until: Sequence[Item], length: int) -> int:
    """Return by how many records earlier a unit may end, so that the items around it keep their sizes.

    A repeating sequence may be cut at any point: its last records may equal the last ones before it.
    """
    best = unlike = gained = 0
    for back, item in enumerate(reversed(before), 1):
        current, previous = until[-back], until[-back - length]
        if current.key != item.key or back >= length:
            break
        gained += (current.sizes != item.sizes) - (previous.sizes != item.sizes)
        if gained < unlike:
            best, unlike = back, gained
    return best


def _resumes(fewer: Sequence[int], at: int, more: Sequence[int], at_more: int, windows: Sequence[int]) -> int | None:
    if at == len(fewer):
        return len(more) - at_more
    for size in windows:
        window = fewer[at : at + size]
        for length in range(1, len(more) - at_more + 1):
            if more[at_more + length : at_more + length + len(window)] == window:
                return length
    return None


def _description(item: Item, stacks: dict[int, tuple[Frame, ...]]) -> str:
    record = item.record
    frames = stacks.get(getattr(record, "stack", -1), ())
    where = f" at {frames[0].file.rpartition('/')[2]}:{frames[0].line} ({frames[0].function})" if frames else ""
    return f"{getattr(record, 'kernel', type(record).__name__.lower())}{where}"


def _key(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode())
