"""Little stories of streams and memory, which a detector is fed.

A test reads as what the host did, line by line, and ends with ``assert_clean`` or ``assert_race``,
as the tests of torch's CSAN do::

    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.waits(compute.records())
    gather.reads(a)
    story.assert_clean()

Each operation has a line of code of its own (its number), unless ``at`` gives one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamrace.detectors import Name, Race, RaceDetector
from streamrace.detectors.race_detector import EXAMPLES
from streamrace.trace.records import (
    Access,
    Alloc,
    Asked,
    Collective,
    Frame,
    Free,
    Group,
    HostWait,
    Label,
    Launch,
    Phase,
    Record,
    RecordStream,
    Reuse,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
    begin,
)


@dataclass(eq=False)
class Named:
    """What an engine that is fed without a detector gets for a race."""

    names: set[Name] = field(default_factory=set)


@dataclass(frozen=True)
class View:
    """Bytes of a block. ``view[a:b]`` is a part of a dense one."""

    block: int
    lo: int
    hi: int
    layout: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None

    def __getitem__(self, part: slice) -> View:
        return View(self.block, self.lo + part.start, self.lo + part.stop)

    def strided(self, lo: int, itemsize: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> View:
        span = itemsize + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return View(self.block, self.lo + lo, self.lo + lo + span, (itemsize, sizes, strides))

    @property
    def access(self) -> Access:
        return Access(self.block, self.lo, self.hi, self.layout)


def _views(given: View | Sequence[View]) -> tuple[Access, ...]:
    return tuple(view.access for view in ([given] if isinstance(given, View) else given))


class StoryStream:
    def __init__(self, host: StoryHost, number: int, name: str) -> None:
        self.host, self.number, self.name = host, number, name
        host.adds(StreamName(number, name))

    def runs(
        self,
        *,
        reads: View | Sequence[View] = (),
        writes: View | Sequence[View] = (),
        kernel: str = "aten::add_",
        at: int | None = None,
        time: tuple[int, int] | None = None,
    ) -> int:
        op, start, end, stack = self.host.operation(at, time)
        self.host.adds(Launch(op, self.number, kernel, _views(reads), _views(writes), stack, start, start, end))
        return op

    def reads(self, view: View, **how: object) -> int:
        return self.runs(reads=view, **{"kernel": "aten::cat", **how})  # type: ignore[arg-type]

    def writes(self, view: View, **how: object) -> int:
        return self.runs(writes=view, **{"kernel": "aten::copy_", **how})  # type: ignore[arg-type]

    def collective(
        self,
        group: int,
        *,
        reads: View | Sequence[View] = (),
        writes: View | Sequence[View] = (),
        kernel: str = "nccl::all_gather",
        root: int = -1,
        at: int | None = None,
        time: tuple[int, int] | None = None,
    ) -> int:
        op, start, end, stack = self.host.operation(at, time)
        number = self.host.numbers.get(group, 0)
        self.host.numbers[group] = number + 1
        accesses = _views(reads), _views(writes)
        self.host.adds(Collective(op, self.number, kernel, *accesses, stack, start, start, end, group, number, root))
        return op

    def records(self) -> int:
        marker = self.host.new_marker()
        self.host.adds(Record(marker, self.number))
        return marker

    def waits(self, marker: int, *, at: int | None = None) -> None:
        """``at``: the line that asks for it."""
        if at is not None:
            self.host.asks("stream.wait_event", self, at)
        self.host.adds(Wait(self.number, marker, 0 if at is None else self.host.stack(at)))

    def waits_for(self, other: StoryStream, *, at: int | None = None) -> None:
        self.waits(other.records(), at=at)


class StoryHost:
    """What one rank's host does."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.trace: list[TraceRecord] = [begin(rank, world)]
        self.numbers: dict[int, int] = {}
        self._ops = self._markers = self._blocks = self._streams = 0
        self._lines: dict[tuple[str, int], int] = {}

    def adds(self, record: TraceRecord) -> None:
        self.trace.append(record)

    def operation(self, at: int | None, time: tuple[int, int] | None) -> tuple[int, int, int, int]:
        op = self._ops
        self._ops += 1
        start, end = (10 * op, 10 * op + 9) if time is None else time
        return op, start, end, self.stack(op if at is None else at)

    def stack(self, line: int, file: str = "/src/model.py") -> int:
        """The number of the stack of a line of code."""
        if (file, line) not in self._lines:
            self._lines[file, line] = len(self._lines)
            frames = (Frame(file, line, "forward"), Frame("/src/train.py", 1, "main"))
            self.adds(Stack(self._lines[file, line], frames))
        return self._lines[file, line]

    def new_marker(self) -> int:
        self._markers += 1
        return self._markers

    def streams(self, *names: str) -> list[StoryStream]:
        self._streams += len(names)
        return [StoryStream(self, self._streams - len(names) + at, name) for at, name in enumerate(names)]

    def block(self, nbytes: int = 64, *, on: StoryStream | None = None) -> View:
        self._blocks += 1
        if on is not None:
            self.adds(Alloc(self._blocks, nbytes, on.number, 0))
        return View(self._blocks, 0, nbytes)

    def frees(self, view: View, *, time: int = 0) -> None:
        self.adds(Free(view.block, time))

    def lets_go(self, view: View) -> None:
        """A free that touches nothing; :meth:`again` tells who gets the memory."""
        self.adds(Free(view.block, 0, quiet=True))

    def again(self, former: View, *, on: StoryStream, at: int | None = None, last: bool = True) -> View:
        """A new block of the very bytes of ``former``, a part of a block that was let go. ``at``: its line."""
        new = self.block(former.hi - former.lo, on=on)
        stack = -1
        if at is not None:
            _, _, _, stack = self.operation(at, None)
        self.adds(Reuse(new.block, former.block, 0, new.hi, former.lo, stack, last))
        return new

    def asks(self, operation: str, stream: StoryStream, at: int, block: int = -1) -> None:
        """A line makes a call that orders something."""
        self.adds(Asked(operation, "/src/model.py", at, "forward", stream.number, block))

    def record_stream(self, view: View, stream: StoryStream, *, at: int | None = None) -> None:
        if at is not None:
            self.asks("tensor.record_stream", stream, at, view.block)
        self.adds(RecordStream(view.block, stream.number))

    def labels(self, view: View, kind: str, name: str) -> None:
        self.adds(Label(view.block, view.lo, view.hi, kind, name))

    def phase(self, step: int, micro_batch: int, name: str) -> None:
        self.adds(Phase(step, micro_batch, name))

    def waits(self, marker: int, how: str = "synchronize", stack: int = 0) -> None:
        self.adds(HostWait(marker, how, stack, 0))

    def synchronizes(self, stream: StoryStream, *, at: int | None = None, file: str = "/src/model.py") -> None:
        self.waits(stream.records(), stack=0 if at is None else self.stack(at, file))

    def looks_at(self, view: View, stream: StoryStream, *, at: int, how: str = "read") -> None:
        """``view.item()``, or with ``how`` "copy" a blocking copy to the device."""
        if how == "read":
            stream.reads(view, kernel="aten::_local_scalar_dense", at=at)
        else:
            stream.writes(view, kernel="cudaMemcpyAsync HtoD", at=at)
        self.waits(stream.records(), how, self.stack(at))


class Story(StoryHost):
    """A story of one rank; with ``ranks``, the hosts of all of them, this one being rank 0."""

    def __init__(self, *, ranks: int = 1) -> None:
        super().__init__(0, ranks)
        self.hosts: list[StoryHost] = [self, *(StoryHost(rank, ranks) for rank in range(1, ranks))]

    def group(self, number: int, *ranks: int) -> int:
        for rank in ranks:
            self.hosts[rank].adds(Group(number, ranks))
        return number

    def fed(self, *, shuffled_by: int | None = None, examples: int | None = EXAMPLES) -> RaceDetector:
        """A detector that was fed the story: rank by rank, or in small pieces of random ranks."""
        detector = RaceDetector(examples)
        if shuffled_by is None:
            for host in self.hosts:
                detector.feed(host.rank, host.trace)
        else:
            draw = random.Random(shuffled_by)
            left = {host.rank: list(host.trace) for host in self.hosts}
            while left:
                rank = draw.choice(sorted(left))
                size = draw.randint(1, 4)
                detector.feed(rank, left[rank][:size])
                left[rank] = left[rank][size:]
                if not left[rank]:
                    del left[rank]
        detector.finish()
        return detector

    def races(self) -> list[Race]:
        return self.fed().races

    def assert_clean(self) -> None:
        assert [f"{race.kind}: {race.missing_wait}" for race in self.races()] == []

    def assert_race(self, *expected: str) -> None:
        """``expected``: for each race ``kind first-stream second-stream``, e.g. "write-read compute gather"."""
        assert [f"{race.kind} {race.first.stream} {race.second.stream}" for race in self.races()] == list(expected)
