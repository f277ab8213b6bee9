"""A run's schedule with waits put in: what holds nothing up costs nothing, and a circle is no schedule."""

from __future__ import annotations

import pytest

from streamrace.detectors.confidence.edges import EdgeLine, Spot, put_in
from streamrace.device.costs import Costs
from streamrace.replay.retiming import Deadlock, Schedule
from tests.detectors.story import Story

COPY, CAT = "aten::copy_", "aten::cat"
CALL = Costs().synchronize_ns


def line(number: int, act: str, kernel: str, *, behind: bool = False, stream: str = "", awaited: str = "") -> EdgeLine:
    return EdgeLine(Spot("/src/model.py", number, number, "forward"), behind, act, kernel, stream, awaited)  # type: ignore[arg-type]


def longer(story: Story, *lines: EdgeLine) -> int:
    records = {host.rank: host.trace for host in story.hosts}
    schedule = Schedule(records)
    assert schedule.exact
    changed = put_in(records, lines)
    return schedule.longer(changed.records, changed.inserted)


def story_of(*, copy_ends: int) -> Story:
    """A copy that ends late, work beside it, and what reads the copy: it would have to begin at 30."""
    story = Story()
    compute, side = story.streams("compute", "side")
    a = story.block()
    compute.writes(a, at=1, time=(10, copy_ends))
    side.runs(at=2, time=(20, 25))
    side.reads(a, at=3, time=(30, 40))
    return story


EVENT = (line(1, "record", COPY, behind=True), line(3, "wait", CAT))


def test_a_wait_for_what_is_done_costs_nothing() -> None:
    assert longer(story_of(copy_ends=28), *EVENT) == 0


def test_a_wait_for_what_is_under_way_costs_what_it_holds_up() -> None:
    assert longer(story_of(copy_ends=35), *EVENT) == 5


def test_the_host_pays_for_the_call_as_well() -> None:
    done, late = story_of(copy_ends=28), story_of(copy_ends=5035)
    assert longer(done, EVENT[0], line(3, "synchronize event", CAT)) == CALL
    assert longer(done, line(3, "synchronize device", CAT)) == CALL  # one call, of however many streams
    # the read would have been done long before the copy: now the host waits for it, and issues the read then
    assert longer(late, EVENT[0], line(3, "synchronize event", CAT)) == 20


def test_ranks_that_would_wait_for_each_other_are_a_deadlock() -> None:
    story = Story(ranks=2)
    story.group(1, 0, 1)
    story.group(2, 0, 1)
    for host in story.hosts:
        one, other = host.streams("one", "other")
        first, second = ((one, 1), (other, 2)) if host.rank == 0 else ((other, 2), (one, 1))
        for stream, group in (first, second):
            stream.collective(group, kernel="nccl::all_reduce", at=group, time=(0, 9))
    waits = [
        line(1, "wait for stream", "nccl::all_reduce", awaited="other"),
        line(2, "wait for stream", "nccl::all_reduce", awaited="one"),
    ]
    with pytest.raises(Deadlock, match="wait for each other in a circle"):
        longer(story, *waits)
