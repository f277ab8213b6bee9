"""Memory that is handed out again against brute force: random owners of the same bytes, one after the other.

First whole blocks, then such as are cut and put together: a new block is made of parts of several former ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrace.trace.records import Reuse
from tests.detectors.story import Story, StoryStream, View
from tests.detectors.test_oracle import PART, PARTS, SIZE, STREAM, Bytes, Graph, Oracle, bytes_of, parts, tell, view_of
from tests.examples import examples


@dataclass
class Touch:
    """An access by one of the owners. ``awaited``: what the allocator has waited for since, before a next owner."""

    op: int
    node: int
    touched: Bytes
    writes: bool
    owner: int
    awaited: list[int] = field(default_factory=list)

    def races(self, later: Touch, graph: Graph) -> bool:
        if not (self.writes or later.writes) or not self.touched & later.touched:
            return False
        if graph.ordered(self.node, later.node):
            return False
        return self.owner == later.owner or not any(graph.ordered(self.node, node) for node in self.awaited)


ACCESS = st.tuples(st.just("access"), STREAM, parts(), st.booleans())
AGAIN = st.tuples(st.just("again"), st.lists(STREAM, unique=True, max_size=2))
ORDER = st.one_of(st.tuples(st.just("order"), STREAM, STREAM), st.tuples(st.just("synchronize"), STREAM))


def of_memory(view: View) -> Bytes:
    """Whoever owns it, it is the same memory."""
    return frozenset((0, byte) for _, byte in bytes_of(view))


@examples(600, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.lists(st.one_of(ACCESS, ACCESS, ACCESS, AGAIN, ORDER), min_size=4, max_size=12))
def test_owners_of_the_same_memory(program: list[Any]) -> None:
    """A race if and only if there is one, and each that is named is one."""
    story, oracle = Story(), Oracle(Graph())
    streams = story.streams("a", "b", "c")
    block = story.block(SIZE, on=streams[0])
    touches: list[Touch] = []
    racing: set[tuple[int, int]] = set()
    owner = 0
    for operation in program:
        match operation:
            case ("access", number, (_, lo, shape), writes):
                view = view_of([block], (0, lo, shape))
                op = streams[number].runs(**{"writes" if writes else "reads": view})
                new = Touch(op, oracle.enqueue(number), of_memory(view), writes, owner)
                racing |= {(old.op, op) for old in touches if old.races(new, oracle.graph)}
                touches.append(new)
            case ("again", several):
                for number in several:
                    story.record_stream(block, streams[number])
                story.lets_go(block)
                block = story.again(block, on=streams[0])
                awaited = [oracle.tails[number] for number in several if number in oracle.tails]
                for touch in touches:
                    touch.awaited += awaited
                owner += 1
            case _:
                tell(story, streams, [block], oracle, operation)
    named = {(example.first.op, example.second.op) for race in story.races() for example in race.examples}
    assert named <= racing
    assert bool(named) == bool(racing)


MEMORY = 12


@dataclass
class PartTouch:
    """An access of memory, byte by byte: what the allocator has waited for since, before each has a next owner."""

    op: int
    node: int
    writes: bool
    awaited: dict[int, list[int]]

    def races(self, later: PartTouch, graph: Graph) -> bool:
        if not (self.writes or later.writes) or graph.ordered(self.node, later.node):
            return False
        return any(
            byte in later.awaited and not any(graph.ordered(self.node, node) for node in nodes)
            for byte, nodes in self.awaited.items()
        )


class Arena:
    """The bytes of a device: each belongs to a live block, or to the last one that had it."""

    def __init__(self, story: Story, owner: StoryStream, size: int, cuts: list[int]) -> None:
        self.story, self.owner, self.size = story, owner, size
        self.live: dict[int, tuple[int, View]] = {}  # by block: where it begins
        self.former: list[tuple[int, int] | None] = [None] * size  # of a free byte: the block, and its place there
        for lo, hi in zip([0, *cuts], [*cuts, size], strict=True):
            block = story.block(hi - lo, on=owner)
            self.live[block.block] = (lo, block)

    def chosen(self, which: int) -> tuple[int, View] | None:
        return list(self.live.values())[which % len(self.live)] if self.live else None

    def free(self, which: int, recorded: list[StoryStream]) -> range:
        """The bytes that are free now."""
        begin, block = self.chosen(which) or (0, None)
        if block is None:
            return range(0)
        del self.live[block.block]
        for stream in recorded:
            self.story.record_stream(block, stream)
        self.story.lets_go(block)
        self.former[begin : begin + block.hi] = [(block.block, byte) for byte in range(block.hi)]
        return range(begin, begin + block.hi)

    def allocate(self, start: int, most: int) -> None:
        """Of the free bytes behind ``start`` so many as lie together."""
        begin = next((byte for byte in range(start, self.size) if self.former[byte] is not None), None)
        if begin is None:
            return
        end = begin
        while end < self.size and end - begin < most and self.former[end] is not None:
            end += 1
        block = self.story.block(end - begin, on=self.owner)
        parts: list[tuple[int, int, int, int]] = []  # former, lo, hi, start
        for byte in range(begin, end):
            former = self.former[byte]
            assert former is not None
            self.former[byte] = None
            at = byte - begin
            if parts and parts[-1][0] == former[0]:
                parts[-1] = (*parts[-1][:2], at + 1, parts[-1][3])
            else:
                parts.append((former[0], at, at + 1, former[1]))
        left = {one[0] for one in self.former if one is not None}
        for number, lo, hi, place in parts:
            self.story.adds(Reuse(block.block, number, lo, hi, place, -1, number not in left))
        self.live[block.block] = (begin, block)


class Memory(Arena):
    """With all that was ever done to it."""

    def __init__(self, story: Story, owner: StoryStream, oracle: Oracle, cuts: list[int]) -> None:
        super().__init__(story, owner, MEMORY, cuts)
        self.oracle = oracle
        self.touches: list[PartTouch] = []
        self.racing: list[tuple[int, int]] = []

    def touch(self, which: int, place: tuple[int, int, int], stream: StoryStream, number: int, *, writes: bool) -> None:
        """``place``: where, so many bytes, so many apart."""
        begin, block = self.chosen(which) or (0, None)
        if block is None:
            return
        lo, count, stride = place[0] % block.hi, place[1], place[2]
        view = block[lo : min(block.hi, lo + count)]
        if stride > 1:
            view = block.strided(lo, 1, (min(count, (block.hi - 1 - lo) // stride + 1),), (stride,))
        op = stream.runs(**{"writes" if writes else "reads": view})
        touched: dict[int, list[int]] = {begin + byte: [] for _, byte in bytes_of(view)}
        new = PartTouch(op, self.oracle.enqueue(number), writes, touched)
        self.racing += [(old.op, op) for old in self.touches if old.races(new, self.oracle.graph)]
        self.touches.append(new)

    def let_go(self, which: int, recorded: list[tuple[int, StoryStream]]) -> None:
        awaited = [self.oracle.tails[one] for one, _ in recorded if one in self.oracle.tails]
        for byte in self.free(which, [stream for _, stream in recorded]):
            for touch in self.touches:
                if byte in touch.awaited:
                    touch.awaited[byte] += awaited


BYTE = st.integers(0, MEMORY - 1)
PLACE = st.tuples(BYTE, st.integers(1, 6), st.sampled_from([1, 1, 2, 3]))
USE = st.tuples(st.just("use"), BYTE, PLACE, STREAM, st.booleans())
LET_GO = st.tuples(st.just("free"), BYTE, st.lists(STREAM, unique=True, max_size=2))
GET = st.tuples(st.just("allocate"), st.integers(0, MEMORY - 3), st.integers(1, MEMORY))


@examples(600, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(1, MEMORY - 1), unique=True, max_size=3).map(sorted),
    program=st.lists(
        st.one_of(USE, USE, USE, USE, USE, LET_GO, LET_GO, GET, GET, GET, ORDER), min_size=16, max_size=28
    ),
)
def test_owners_of_parts_of_the_same_memory(cuts: list[int], program: list[Any]) -> None:
    """A race if and only if there is one; each that is named is one, and the first is."""
    story, oracle = Story(), Oracle(Graph())
    streams = story.streams("a", "b", "c")
    memory = Memory(story, streams[0], oracle, cuts)
    for operation in program:
        match operation:
            case ("use", which, place, number, writes):
                memory.touch(which, place, streams[number], number, writes=writes)
            case ("free", which, recorded):
                memory.let_go(which, [(number, streams[number]) for number in recorded])
            case ("allocate", start, most):
                memory.allocate(start, most)
            case _:
                tell(story, streams, [], oracle, operation)
    named = {(example.first.op, example.second.op) for race in story.races() for example in race.examples}
    assert named <= set(memory.racing)
    assert min((second for _, second in named), default=0) == min((second for _, second in memory.racing), default=0)


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts_of_all=st.permutations(range(0, 4 * PARTS, 4)),
    recorded=st.lists(STREAM, unique=True, max_size=1),
    program=st.lists(st.tuples(STREAM, PART, st.booleans(), st.booleans()), min_size=4, max_size=12),
)
def test_many_parts_of_memory_that_is_handed_out(
    parts_of_all: list[int], recorded: list[int], program: list[Any]
) -> None:
    """The former owner touched so many that they are searched by place."""
    story, oracle = Story(), Oracle(Graph())
    streams = story.streams("a", "b", "c")
    block = story.block(4 * PARTS, on=streams[0])
    touches: list[Touch] = []
    racing: list[tuple[int, int]] = []

    def touch(number: int, lo: int, length: int, *, writes: bool, owner: int) -> None:
        view = block[lo : min(4 * PARTS, lo + length)]
        op = streams[number].runs(**{"writes" if writes else "reads": view})
        new = Touch(op, oracle.enqueue(number), of_memory(view), writes, owner)
        racing.extend((old.op, op) for old in touches if old.races(new, oracle.graph))
        touches.append(new)

    for place, lo in enumerate(parts_of_all):
        touch(place % 3, lo, 4, writes=lo % 8 == 0, owner=0)
    for number in recorded:
        story.record_stream(block, streams[number])
    story.lets_go(block)
    awaited = [oracle.tails[number] for number in recorded]
    for old in touches:
        old.awaited += awaited
    block = story.again(block, on=streams[0])
    for number, (lo, length), writes, ordered in program:
        if ordered:
            tell(story, streams, [block], oracle, ("order", number, (number + 1) % 3))
        touch(number, lo, length, writes=writes, owner=1)
    named = {(example.first.op, example.second.op) for race in story.races() for example in race.examples}
    assert named <= set(racing)
    assert min((second for _, second in named), default=0) == min((second for _, second in racing), default=0)
