"""The detector against brute force: small random programs, order by transitive closure of an explicit graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.detectors.story import Story, StoryHost, StoryStream, View
from tests.examples import examples

SIZE = 8
Bytes = frozenset[tuple[int, int]]  # (block, byte)


@dataclass
class Graph:
    """What is ordered before what: of each node all that is before it, as bits, by way of the edges for each reason."""

    before: list[int] = field(default_factory=list)

    def node(self, *earlier: int | None) -> int:
        bits = 0
        for node in earlier:
            if node is not None:
                bits |= self.before[node] | 1 << node
        self.before.append(bits)
        return len(self.before) - 1

    def ordered(self, first: int, second: int) -> bool:
        return first == second or bool(self.before[second] >> first & 1)


@dataclass
class Oracle:
    """One rank's accesses, as nodes of the graph. Blocks are the rank's own."""

    graph: Graph
    host: int = 0
    tails: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    accesses: list[tuple[int | None, int, Bytes, bool]] = field(default_factory=list)  # (op, node, bytes, writes)

    def __post_init__(self) -> None:
        self.host = self.graph.node()

    def enqueue(self, stream: int, *earlier: int) -> int:
        node = self.graph.node(self.tails.get(stream), self.host, *earlier)
        self.tails[stream] = node
        return node

    def racing(self) -> set[tuple[int | None, int | None]]:
        return {
            (op, other)
            for at, (op, node, touched, writes) in enumerate(self.accesses)
            for other, later, also, too in self.accesses[at + 1 :]
            if (writes or too) and touched & also and not self.graph.ordered(node, later)
        }


def bytes_of(view: View) -> Bytes:
    if view.layout is None:
        return frozenset((view.block, byte) for byte in range(view.lo, view.hi))
    itemsize, sizes, strides = view.layout
    starts = [view.lo]
    for size, stride in zip(sizes, strides, strict=True):
        starts = [start + index * stride for start in starts for index in range(size)]
    return frozenset((view.block, start + byte) for start in starts for byte in range(itemsize))


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, int, tuple[int, int, int] | None]:
    """(block, lo, hi or a strided layout): mostly whole blocks, as these race the most."""
    block = draw(st.sampled_from([0, 0, 0, 1]))
    match draw(st.integers(0, 7)):
        case 4:
            lo = draw(st.integers(0, SIZE - 1))
            return block, lo, (draw(st.integers(lo + 1, SIZE)) - lo, 1, 0)
        case 6:  # covers the beginning of others, or their end
            return block, 0, (draw(st.integers(1, SIZE - 1)), 1, 0)
        case 7:
            lo = draw(st.integers(1, SIZE - 1))
            return block, lo, (SIZE - lo, 1, 0)
        case 5:
            return block, draw(st.integers(0, 1)), (1, draw(st.integers(2, 4)), 2)
        case _:
            return block, 0, None


def view_of(blocks: list[View], part: tuple[int, int, tuple[int, int, int] | None]) -> View:
    block, lo, shape = part
    if shape is None:
        return blocks[block]
    itemsize, size, stride = shape
    return blocks[block][lo : lo + itemsize] if size == 1 else blocks[block].strided(lo, itemsize, (size,), (stride,))


STREAM = st.integers(0, 2)
OPERATION = st.one_of(
    st.tuples(st.just("launch"), STREAM, st.lists(parts(), max_size=4), st.lists(parts(), max_size=3)),
    st.tuples(st.just("launch"), STREAM, st.just([]), st.lists(parts(), min_size=1, max_size=1)),
    st.tuples(st.just("launch"), STREAM, st.lists(parts(), min_size=1, max_size=1), st.just([])),
    st.tuples(st.just("order"), STREAM, STREAM),
    st.tuples(st.just("order"), STREAM, STREAM),
    st.tuples(st.just("record"), STREAM),
    st.tuples(st.just("wait"), STREAM, st.integers(0, 2)),
    st.tuples(st.just("host"), st.integers(0, 2)),
    st.tuples(st.just("synchronize"), STREAM),
)
COLLECTIVE = st.tuples(
    st.just("collective"),
    st.sampled_from(
        [("nccl::all_gather", -1), ("nccl::reduce_scatter", -1)]
        + [(f"nccl::{k}", r) for k in ("broadcast", "scatter", "reduce", "gather", "send") for r in (0, 1)]
    ),
    st.tuples(STREAM, STREAM),
    st.lists(parts(), max_size=1),
    st.lists(parts(), max_size=1),
)


def tell(host: StoryHost, streams: list[StoryStream], blocks: list[View], oracle: Oracle, operation: Any) -> None:
    """Let the host do it, and note it in the graph."""
    match operation:
        case ("launch", number, reads, writes):
            seen, written = [view_of(blocks, part) for part in reads], [view_of(blocks, part) for part in writes]
            op = streams[number].runs(reads=seen, writes=written)
            node = oracle.enqueue(number)
            oracle.accesses += [(op, node, bytes_of(view), False) for view in seen]
            oracle.accesses += [(op, node, bytes_of(view), True) for view in written]
        case ("record", number):
            oracle.markers[streams[number].records()] = oracle.enqueue(number)
        case ("order", later, earlier):
            marker = streams[earlier].records()
            oracle.markers[marker] = oracle.enqueue(earlier)
            streams[later].waits(marker)
            oracle.enqueue(later, oracle.markers[marker])
        case ("synchronize", number):
            host.waits(streams[number].records())
            oracle.host = oracle.graph.node(oracle.host, oracle.enqueue(number))
        case ("wait", number, back) if back < len(oracle.markers):
            marker = sorted(oracle.markers)[-1 - back]
            streams[number].waits(marker)
            oracle.enqueue(number, oracle.markers[marker])
        case ("host", back) if back < len(oracle.markers):
            marker = sorted(oracle.markers)[-1 - back]
            host.waits(marker)
            oracle.host = oracle.graph.node(oracle.host, oracle.markers[marker])


def meet(
    hosts: list[StoryHost],
    cast: list[list[StoryStream]],
    blocks: list[list[View]],
    oracles: list[Oracle],
    operation: Any,
) -> None:
    """Both ranks take part in a collective."""
    _, (kernel, root), numbers, reads, writes = operation
    begun = [oracle.enqueue(number) for oracle, number in zip(oracles, numbers, strict=True)]
    for rank, (oracle, number) in enumerate(zip(oracles, numbers, strict=True)):
        peer = 1 - rank
        learns = root == -1 or (root == rank if kernel in ("nccl::reduce", "nccl::gather") else root == peer)
        done = oracle.enqueue(number, *([begun[peer]] if learns else []))
        seen, written = ([view_of(blocks[rank], part) for part in each] for each in (reads, writes))
        op = cast[rank][number].collective(0, reads=seen, writes=written, kernel=kernel, root=root)
        oracle.accesses += [(op, begun[rank], bytes_of(view), False) for view in seen]
        oracle.accesses += [(op, done, bytes_of(view), True) for view in written]


def compare(story: Story, oracles: list[Oracle]) -> None:
    """A race if and only if there is one, on each rank; and each that is named is one."""
    races = story.races()
    for rank, oracle in enumerate(oracles):
        named = {
            (example.first.op, example.second.op) for race in races for example in race.examples if example.rank == rank
        }
        racing = oracle.racing()
        assert named <= racing
        assert bool(named) == bool(racing)
        # Not only the first: each access that races with an earlier one is the later side of some race.
        assert {second for _, second in named} == {second for _, second in racing}


QUICK = examples(1000, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(
    program=st.lists(OPERATION, min_size=4, max_size=8),
    freed=st.lists(st.tuples(STREAM, st.lists(STREAM, unique=True)), min_size=2, max_size=2),
)
def test_one_rank(program: list[Any], freed: list[tuple[int, list[int]]]) -> None:
    story = Story()
    streams = story.streams("a", "b", "c")
    blocks = [story.block(SIZE, on=streams[owner]) for owner, _ in freed]
    oracle = Oracle(Graph())
    for operation in program:
        tell(story, streams, blocks, oracle, operation)
    for block, (owner, several) in zip(blocks, freed, strict=True):
        tails = [oracle.tails.get(owner), oracle.host]
        for recorded in several:
            story.record_stream(block, streams[recorded])
            tails.append(oracle.tails.get(recorded))
        story.frees(block)
        oracle.accesses.append((None, oracle.graph.node(*tails), bytes_of(block), True))
    compare(story, [oracle])


@QUICK
@given(program=st.lists(st.one_of(COLLECTIVE, st.tuples(st.integers(0, 1), OPERATION)), min_size=4, max_size=10))
def test_two_ranks(program: list[Any]) -> None:
    story = Story(ranks=2)
    story.group(0, 0, 1)
    cast = [host.streams("a", "b", "c") for host in story.hosts]
    blocks = [[host.block(SIZE), host.block(SIZE)] for host in story.hosts]
    graph = Graph()
    oracles = [Oracle(graph), Oracle(graph)]
    for operation in program:
        if operation[0] == "collective":
            meet(story.hosts, cast, blocks, oracles, operation)
        else:
            rank, own = operation
            tell(story.hosts[rank], cast[rank], blocks[rank], oracles[rank], own)
    compare(story, oracles)


PARTS = 36  # half of them read, half written: of each kind more than are kept in one list (access_history.py)
PART = st.tuples(st.integers(0, 4 * PARTS - 1), st.sampled_from([1, 1, 4, 4, 8, 33]))


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts_of_all=st.permutations(range(0, 4 * PARTS, 4)),
    program=st.lists(st.tuples(STREAM, PART, st.booleans(), st.booleans()), min_size=6, max_size=14),
)
def test_many_parts_of_one_block(parts_of_all: list[int], program: list[Any]) -> None:
    """So many that they are searched by place: each is touched once, in any order, before the program begins."""
    story = Story()
    streams = story.streams("a", "b", "c")
    flat = story.block(4 * PARTS)
    oracle = Oracle(Graph())
    touched = [(0, (lo, 4), lo % 8 == 0, False) for lo in parts_of_all]
    for number, (lo, length), writes, ordered in touched + program:
        if ordered:
            tell(story, streams, [flat], oracle, ("order", number, (number + 1) % 3))
        view = flat[lo : min(4 * PARTS, lo + length)]
        op = streams[number].runs(**{"writes" if writes else "reads": view})
        oracle.accesses.append((op, oracle.enqueue(number), bytes_of(view), writes))
    compare(story, [oracle])


PILED = 190  # strided reads, and as many writes, of similar length: of each more than are let be
SHAPE = st.tuples(st.integers(0, 23), st.integers(1, 3), st.sampled_from([2, 3, 4, 5]))
PILE = st.tuples(STREAM, SHAPE, st.booleans(), st.sampled_from([False] * 7 + [True]))


def comb(block: View, place: int, itemsize: int, stride: int) -> View:
    """Every so many bytes of 24, from a place in another 24 on."""
    return block.strided(place, itemsize, (24 // stride,), (stride,))


@examples(20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example])
@given(
    pile=st.lists(PILE, min_size=2 * PILED, max_size=2 * PILED),
    program=st.lists(PILE, min_size=4, max_size=12),
)
def test_many_strided_accesses_of_one_place(pile: list[Any], program: list[Any]) -> None:
    """So many that those go whose bytes newer ones touch together: what comes then races as if all were there."""
    story = Story()
    streams = story.streams("a", "b", "c")
    block = story.block(64)
    oracle = Oracle(Graph())
    for number, shape, writes, ordered in pile + program:
        if ordered:
            tell(story, streams, [block], oracle, ("order", number, (number + 1) % 3))
        view = comb(block, *shape)
        op = streams[number].runs(**{"writes" if writes else "reads": view})
        oracle.accesses.append((op, oracle.enqueue(number), bytes_of(view), writes))
    detector = story.fed(examples=None)
    named = {(one.first.op, one.second.op) for race in detector.races for one in race.examples}
    racing = oracle.racing()
    assert named <= racing
    assert {second for _, second in named} == {second for _, second in racing}
