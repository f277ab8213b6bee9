"""Lines put into a recorded run: what they order, and that they never order more than they would in the program."""

from __future__ import annotations

from typing import Any

import pytest

from streamrace.detectors.confidence.edges import Changed, EdgeLine, Spot, put_in
from tests.detectors.story import Story

COPY, CAT = "aten::copy_", "aten::cat"


def spot(line: int, last: int | None = None) -> Spot:
    return Spot("/src/model.py", line, last or line, "forward")


def behind(line: int, act: Any = "record", kernel: str = COPY, **more: str) -> EdgeLine:
    return EdgeLine(spot(line), True, act, kernel, **more)


def front(line: int, act: Any = "wait", kernel: str = CAT, **more: str) -> EdgeLine:
    return EdgeLine(spot(line), False, act, kernel, **more)


def changed(story: Story, *lines: EdgeLine) -> Changed:
    return put_in({host.rank: host.trace for host in story.hosts}, lines)


def left(story: Story, *lines: EdgeLine) -> int:
    return sum(race.occurrences for race in changed(story, *lines).races)


def racing() -> Story:
    """A copy at line 1, and a read of it at line 3 on another stream; twice."""
    story = Story()
    compute, side = story.streams("compute", "side")
    a = story.block()
    for _ in range(2):
        compute.writes(a, at=1)
        compute.runs(at=2)
        side.reads(a, at=3)
    return story


@pytest.mark.parametrize(
    "lines",
    [
        (behind(1), front(3)),
        (front(3, "wait for stream", awaited="compute"),),
        (behind(1, "wait for stream", stream="side"),),
        (behind(1), front(3, "synchronize event")),
        (behind(1, "synchronize stream"),),
        (front(3, "synchronize device"),),
    ],
)
def test_each_order_cures_what_it_stands_between(lines: tuple[EdgeLine, ...]) -> None:
    assert left(racing()) == 3  # the second copy also races with the first read
    both = [*lines, behind(3, "wait for stream", CAT, stream="compute")]
    assert left(racing(), *both) == 0
    assert changed(racing(), *both).reached[0] == 2


@pytest.mark.parametrize("lines", [(behind(3, kernel=CAT), front(1, kernel=COPY)), (front(1), behind(1)), (front(3),)])
def test_an_order_elsewhere_cures_not(lines: tuple[EdgeLine, ...]) -> None:
    assert "write-read" in [race.kind for race in changed(racing(), *lines).races]


def test_a_line_that_is_never_come_by_says_so() -> None:
    found = changed(racing(), behind(7), front(3))
    assert found.reached == (0, 2)
    assert found.inserted == {0: frozenset()}  # nobody waits for what nobody recorded


def test_an_event_is_that_of_who_recorded_it_last() -> None:
    story = Story()
    one, other, side = story.streams("one", "other", "side")
    a, b = story.block(), story.block()
    one.writes(a, at=1)
    other.writes(b, at=1)
    side.reads([a, b], at=3)
    races = changed(story, EdgeLine(spot(1), True, "record", COPY), front(3)).races
    assert [race.first.stream for race in races] == ["one"]


def test_occurrences_with_nothing_between_are_one() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    a = story.block()
    for _ in range(3):
        compute.writes(a, at=1)
    side.reads(a, at=3)
    found = changed(story, behind(1), front(3))
    assert found.reached == (1, 1)
    assert not found.races


def test_what_a_statement_waits_for_by_itself_is_recorded_behind_the_line_in_front_of_it() -> None:
    story = Story()
    compute, side, nccl = story.streams("compute", "side", "nccl")
    a = story.block()
    compute.writes(a, at=1)
    marker = side.records()
    story.block(on=side)  # as a library may allocate in between
    nccl.waits(marker, at=3)
    nccl.runs(reads=a, kernel=CAT, at=3)
    meant = front(3, "wait for stream", stream="side", awaited="compute")
    assert left(story) == 1
    assert left(story, meant) == 0


def test_a_record_of_the_statement_before_is_not_behind_it() -> None:
    story = Story()
    compute, side, other = story.streams("compute", "side", "other")
    a = story.block()
    compute.writes(a, at=1)
    marker = side.records()  # the program's own event, which no line orders
    side.runs(kernel=CAT, at=3)
    other.waits(marker, at=4)
    other.reads(a, at=5)
    assert left(story, front(3, "wait for stream", awaited="compute")) == 1


def test_memory_waits_for_the_stream_that_record_stream_names() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    a = story.block(on=compute)
    side.reads(a, at=1)
    story.lets_go(a)
    b = story.again(a, on=compute, at=2)
    compute.writes(b, at=3)
    assert left(story) == 1
    assert left(story, behind(1, "record_stream", CAT)) == 0


def test_a_statement_of_several_lines_ends_with_its_last() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    a, b = story.block(), story.block()
    compute.writes(a, at=1)
    compute.writes(b, at=2)
    side.reads([a, b], at=4)
    assert left(story, behind(1), front(4)) == 1
    assert left(story, EdgeLine(spot(1, 2), True, "record", COPY), front(4)) == 0
