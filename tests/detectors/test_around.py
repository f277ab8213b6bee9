"""The order around two accesses that race: what each comes behind, the last that both do, what waits too late."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrace.detectors.confidence.order_context import Around, Behind, OrderAround
from tests.detectors.story import Story
from tests.detectors.test_oracle import OPERATION, SIZE, Graph, Oracle, tell
from tests.examples import examples


def around(story: Story, *, race: int = 0) -> Around:
    one = story.races()[race]
    order = OrderAround(one, one.examples[0])
    for host in story.hosts:
        order.feed(host.rank, host.trace)
    found = order.around()
    assert found is not None
    return found


def told(*behind: Behind | None) -> list[tuple[int, list[tuple[str, int]]]]:
    """The line of each work, and the links that lead from it, with theirs."""
    return [
        (one.work.frame.line, [(link.what, link.line) for link in one.links])
        for one in behind
        if one and one.work.frame
    ]


def test_a_wait_that_comes_too_early_leaves_the_access_outside() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    side.waits_for(compute, at=2)
    compute.writes(weights, at=3)
    side.reads(weights, at=4)
    found = around(story)
    wait = ("stream 'side' waits for stream 'compute'", 2)
    assert told(*found.first) == [(1, [])]
    assert told(*found.second) == [(1, [wait])]
    assert found.common is not None and told(*found.common) == [(1, []), (1, [wait])]
    assert told(found.known) == [(1, [wait])]
    assert found.late is None


def test_a_wait_that_comes_too_late_is_named() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    side.reads(weights, at=2)
    side.waits_for(compute, at=3)
    found = around(story)
    assert (found.first, found.second, found.common, found.known) == ((), (), None, None)
    assert found.late is not None
    assert [(link.what, link.line) for link in found.late] == [("stream 'side' waits for stream 'compute'", 3)]


def test_so_is_one_of_the_host() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    side.reads(weights, at=2)
    story.synchronizes(compute, at=3)
    found = around(story)
    assert found.late is not None
    assert [(link.what, link.line) for link in found.late] == [("the host waits for stream 'compute'", 3)]


def test_the_last_that_both_come_behind_may_be_of_a_third_stream() -> None:
    story = Story()
    compute, side, loader = story.streams("compute", "side", "loader")
    weights, batch = story.block(), story.block()
    loader.writes(batch, at=1)
    loader.writes(batch, at=2)
    compute.waits_for(loader, at=3)
    side.waits_for(loader, at=4)
    compute.writes(weights, at=5)
    side.reads(weights, at=6)
    found = around(story)
    assert found.common is not None
    assert told(*found.common) == [
        (2, [("stream 'compute' waits for stream 'loader'", 3)]),
        (2, [("stream 'side' waits for stream 'loader'", 4)]),
    ]
    assert found.known is None


def test_of_many_streams_that_of_the_other_access_is_told() -> None:
    story = Story()
    compute, side, *others = story.streams("compute", "side", "a", "b", "c")
    weights, batch = story.block(), story.block()
    compute.writes(batch, at=1)
    side.waits_for(compute, at=2)
    for at, other in enumerate(others, 10):
        other.runs(at=at)
        side.waits_for(other, at=at)
    compute.writes(weights, at=5)
    side.reads(weights, at=6)
    assert [one.work.stream for one in around(story).second] == ["compute", "c"]


def test_a_collective_of_another_rank_may_be_part_of_the_order() -> None:
    """Rank 0's read comes behind its own work of before only by way of rank 1."""
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    first, second = (host.streams("compute", "nccl", "side") for host in story.hosts)
    weights = story.block()
    first[0].writes(weights, at=1)
    first[1].waits_for(first[0], at=2)
    for streams in (first, second):
        streams[1].collective(group, reads=(), at=3)
    first[2].waits_for(first[1], at=4)
    first[0].writes(weights, at=5)
    first[2].reads(weights, at=6)
    found = around(story)
    assert found.known is not None
    assert [link.line for link in found.known.links] == [2, 4]
    assert found.known.work.frame is not None and found.known.work.frame.line == 1


def test_memory_that_changed_its_owner_says_whom_the_allocator_followed() -> None:
    story = Story()
    compute, side, third = story.streams("compute", "side", "third")
    old = story.block(on=compute)
    side.reads(old, at=1)
    story.record_stream(old, third)
    story.lets_go(old)
    compute.runs(at=2)
    compute.writes(story.again(old, on=compute, at=3), at=4)
    handed = around(story).handed
    assert handed is not None
    assert (handed.owner, handed.recorded) == ("compute", ("third",))
    assert handed.before is not None and handed.before.frame is not None and handed.before.frame.line == 1


def test_a_trace_of_another_run_has_no_order_of_it() -> None:
    story, other = Story(), Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    side.reads(weights, at=2)
    (one,) = story.races()
    order = OrderAround(one, one.examples[0]._replace(first=one.examples[0].first._replace(op=77)))
    order.feed(0, story.trace)
    assert order.around() is None
    order = OrderAround(one, one.examples[0])
    order.feed(0, other.trace)
    assert order.around() is None


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPERATION, min_size=4, max_size=14))
def test_what_is_told_is_what_brute_force_says(operations: list[Any]) -> None:
    """Small random programs: what an access comes behind, the nearest order of two, and what of a stream is known."""
    story = Story()
    streams = story.streams("a", "b", "c")
    blocks = [story.block(SIZE), story.block(SIZE)]
    oracle = Oracle(Graph())
    works: dict[int, tuple[int, str]] = {}  # node and stream by operation
    for operation in operations:
        tell(story, streams, blocks, oracle, operation)
        if operation[0] == "launch":
            works[story.trace[-1].op] = oracle.tails[operation[1]], streams[operation[1]].name  # type: ignore[union-attr]
    ordered = oracle.graph.ordered
    for race in story.races():
        one = race.examples[0]
        order = OrderAround(race, one)
        order.feed(0, story.trace)
        found = order.around()
        assert found is not None and one.first.op is not None and one.second.op is not None
        nodes = [works[op][0] for op in (one.first.op, one.second.op)]
        others = {op: node for op, (node, _) in works.items() if op not in (one.first.op, one.second.op)}
        behind = [{op for op, node in others.items() if ordered(node, of)} for of in nodes]
        for told, before, side in zip((found.first, found.second), behind, (race.first, race.second), strict=True):
            last = {
                stream: max(op for op in before if works[op][1] == stream) for stream in {works[op][1] for op in before}
            }
            assert {one.work.stream: one.work.op for one in told} == last  # three streams: none is left out
            assert [one.work.stream == side.stream for one in told] == [not one.links for one in told]
        known = [op for op in behind[1] if works[op][1] == race.first.stream]
        assert (found.known.work.op if found.known else None) == max(known, default=None)
        both = behind[0] & behind[1]
        assert (found.common is None) == (not both)
        if found.common is not None:
            op = found.common[0].work.op
            assert op in both and not any(other != op and ordered(others[op], others[other]) for other in both)
