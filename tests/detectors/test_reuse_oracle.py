"""Memory that is handed out again against brute force: random owners of the same bytes, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.detectors.story import Story, View
from tests.detectors.test_oracle import SIZE, STREAM, Bytes, Graph, Oracle, bytes_of, parts, tell, view_of
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
