"""What is ordered by nothing but a wait that is there for another reason."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from streamrace.detectors import Race, RaceDetector
from streamrace.detectors.confidence.incidental import OrderBasis, WithoutIncidentalWaits, holding, together
from streamrace.detectors.confidence.waits import Counts, Keep, Waits, races_without
from streamrace.detectors.race_detector import EXAMPLES
from streamrace.trace.records import HOST_STREAM
from tests.detectors.story import Story, View


def held(story: Story, **how: int) -> OrderBasis:
    waits = Waits()
    bare = WithoutIncidentalWaits(waits)
    following: list[Waits | WithoutIncidentalWaits] = [waits, bare]
    for start in range(0, max(len(host.trace) for host in story.hosts), 3):  # as it comes: a few records, and a few
        for host, one in product(story.hosts, following):
            one.feed(host.rank, host.trace[start : start + 3])
    bare.finish()

    def judged(detector: RaceDetector, keep: Keep) -> list[Race]:
        for host in story.hosts:
            detector.feed(host.rank, [record for record in host.trace if keep(host.rank, record)])
        detector.finish()
        return detector.races

    def judge(keep: Keep, counts: Counts) -> list[Race]:
        return judged(RaceDetector(counts=counts), keep)

    story.assert_clean()
    # What counts is counted as it comes; it is the same as to keep all occurrences and to sort them out at the end.
    sites = tuple(waits.sites)
    at_the_end = races_without(waits, lambda keep: judged(RaceDetector(None), keep), sites)
    as_it_comes = judge(waits.without(sites), waits.besides_own(sites))
    assert as_it_comes == [replace(race, examples=race.examples[:EXAMPLES]) for race in at_the_end]
    assert bare.findings() == as_it_comes
    together_ = together(waits, bare)
    assert [race for one in together_.held for race in one.races] == as_it_comes or len(together_.held) > 1
    return holding(waits, bare, judge, **how)


def lines(found: OrderBasis) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Of each finding the lines that hold, and the lines of the pairs."""

    def line(frame: object) -> str:
        return str(getattr(frame, "line", "?"))

    return [
        (
            [line(site.frame) for site in one.sites],
            [(line(race.first.stack[0]), line(race.second.stack[0])) for race in one.races],
        )
        for one in found.held
    ]


@pytest.mark.parametrize("how", ["read", "copy"])
def test_a_pair_that_a_read_happens_to_order_is_told_with_its_line(how: str) -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights, at=10)
    story.looks_at(loss, compute, at=20, how=how)
    side.reads(weights, at=30)
    found = held(story)
    assert lines(found) == [(["20"], [("10", "30")])]
    assert found.held[0].sites[0].how == how
    assert "model.py:20" in found.held[0].sentence()


def test_what_a_wait_of_a_stream_orders_rests_on_nothing_else() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights)
    story.looks_at(loss, compute, at=20)
    side.waits_for(compute)
    side.reads(weights)
    assert held(story) == OrderBasis((), 1, 0)


def test_a_synchronisation_that_somebody_wrote_is_meant() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights)
    story.synchronizes(compute, at=20)
    side.reads(weights)
    assert held(story) == OrderBasis((), 0, 0)


def test_but_not_that_of_a_timer() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=10)
    story.synchronizes(compute, at=20, file="deepspeed/utils/timer.py")
    side.reads(weights, at=30)
    found = held(story)
    assert lines(found) == [(["20"], [("10", "30")])]
    assert "the timer's wait at deepspeed/utils/timer.py:20" in found.held[0].sentence()


def test_a_read_is_there_for_what_it_reads() -> None:
    """Who overwrites a tensor behind ``.cpu()`` relies on what that call is for."""
    story = Story()
    compute, side = story.streams("compute", "side")
    result = story.block()
    story.looks_at(result, compute, at=20)
    side.writes(result, at=30)
    assert held(story).held == ()


def test_the_hosts_own_use_of_pinned_memory_is_no_wait_of_another() -> None:
    story = Story()
    compute, host = story.streams("compute", HOST_STREAM)
    pinned = story.block()
    story.looks_at(pinned, host, at=20)
    compute.writes(pinned, at=30)
    assert held(story) == OrderBasis((), 0, 0)


def two_reads() -> tuple[Story, View]:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights, at=10)
    story.looks_at(loss, compute, at=20)
    story.looks_at(loss, compute, at=21)
    side.reads(weights, at=30)
    return story, loss


def test_of_two_waits_each_of_which_is_enough_both_are_told() -> None:
    story, _ = two_reads()
    assert lines(held(story)) == [(["20", "21"], [("10", "30")])]


def test_each_line_is_told_with_its_own_pairs_and_the_count_is_kept() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    for _ in range(3):
        first, second, loss = story.block(), story.block(), story.block()
        compute.writes(first, at=10)
        story.looks_at(loss, compute, at=20)
        side.reads(first, at=30)
        compute.writes(second, at=11)
        story.looks_at(loss, compute, at=21)
        side.reads(second, at=31)
        compute.waits_for(side)
    found = held(story)
    assert sorted(lines(found)) == [(["20"], [("10", "30")]), (["21"], [("11", "31")])]
    assert {race.occurrences for one in found.held for race in one.races} == {3}


def test_it_is_said_how_many_lines_were_not_looked_at_alone() -> None:
    story, _ = two_reads()
    found = held(story, most=1)
    assert found.unexamined == 1
    assert lines(found) == [(["20", "21"], [("10", "30")])]


def test_a_wait_of_another_rank_holds_too() -> None:
    """Rank 1's host waits before it gives its part to the collective, whose end rank 0 waits for."""
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    near, far = story.hosts
    compute, side, nccl = near.streams("compute", "side", "nccl")
    weights = near.block()
    compute.writes(weights, at=10)
    nccl.waits_for(compute)
    nccl.collective(group, at=11)
    near.waits(nccl.records(), "read", near.stack(12))
    side.reads(weights, at=13)
    (other,) = far.streams("nccl")
    other.collective(group, at=11)
    assert lines(held(story)) == [(["12"], [("10", "13")])]
