"""Each line's waits taken away alone, in a trace: what carries load, what is redundant, and what orders the same."""

from __future__ import annotations

from typing import Any

from streamrace.detectors import Race, RaceDetector
from streamrace.detectors.confidence.removal import CARRIES, FRAGILE, REDUNDANT, UNKNOWN, Removal, Removals, take_away
from streamrace.detectors.confidence.waits import AsIf, Keep
from streamrace.trace.records import Wait
from tests.detectors.story import Story


class Told:
    """A story as traces that can be read again and again."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def read(self, reader: Any, keep: Keep | None = None) -> None:
        for host in self._story.hosts:
            reader.feed(host.rank, [one for one in host.trace if keep is None or keep(host.rank, one)])

    def races(self, keep: Keep | None = None, as_if: AsIf | None = None) -> list[Race]:
        detector = RaceDetector(None)
        for host in self._story.hosts:
            records = [one for one in host.trace if keep is None or keep(host.rank, one)]
            detector.feed(host.rank, [as_if(host.rank, one) if as_if else one for one in records])
        detector.finish()
        return detector.races


def judged(story: Story) -> tuple[dict[int, Removal], Removals]:
    """What is said of each line."""
    found = take_away(Told(story))
    return {one.site.frame.line: one for one in found.each if one.site.frame}, found


def loads(story: Story) -> dict[int, str]:
    return {line: str(one.load) for line, one in judged(story)[0].items()}


def test_a_wait_without_which_there_is_a_race_carries_load() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    side.waits_for(compute, at=2)
    side.reads(weights, at=3)
    by_line, found = judged(story)
    assert by_line[2].load == CARRIES
    (race,) = by_line[2].races
    assert (race.first.stack[0].line, race.second.stack[0].line) == (1, 3)
    assert by_line[2].operation == "stream.wait_event"
    assert found.together == ()


def test_of_two_waits_each_is_redundant_and_only_one_can_go() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=1)
    marker = compute.records()
    side.waits(marker, at=2)
    side.waits(marker, at=3)
    side.reads(weights, at=4)
    by_line, found = judged(story)
    assert {line: one.load for line, one in by_line.items()} == {2: REDUNDANT, 3: REDUNDANT}
    assert [str(link) for link in by_line[2].chain or ()] == [
        "stream 'side' waits for stream 'compute' (/src/model.py:3)"
    ]
    assert [one.frame.line for one in found.together if one.frame] == [2]


def test_what_orders_it_instead_may_go_over_another_stream_and_the_host() -> None:
    story = Story()
    compute, side, third = story.streams("compute", "side", "third")
    weights = story.block()
    compute.writes(weights, at=1)
    side.waits_for(compute, at=2)
    third.waits_for(compute)  # a library's
    story.synchronizes(third, at=5)
    side.reads(weights, at=6)
    by_line, found = judged(story)
    assert by_line[2].load == REDUNDANT
    assert [link.what for link in by_line[2].chain or ()] == [
        "stream 'third' waits for stream 'compute'",
        "the host waits for stream 'third'",
    ]
    assert by_line[5].load == REDUNDANT
    assert by_line[5].operation == "", "no call of torch.cuda, so no live run can leave it out"
    assert found.others == 1


def test_or_over_another_rank() -> None:
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    compute, side, comm = story.streams("compute", "side", "comm")
    (peer,) = story.hosts[1].streams("comm")
    weights = story.block()
    compute.writes(weights, at=1)
    comm.waits_for(compute)
    comm.collective(group, at=2)
    peer.collective(group)
    peer.collective(group)
    side.waits_for(compute, at=3)
    side.collective(group, at=4)  # its peer knows of the first one
    side.reads(weights, at=5)
    by_line, _ = judged(story)
    assert by_line[3].load == REDUNDANT
    assert [link.what for link in by_line[3].chain or ()] == [
        "stream 'comm' waits for stream 'compute'",
        "all_gather of rank 0 with rank 1",
        "all_gather of rank 1 with rank 0",
    ]


def test_a_read_on_which_something_rests_is_fragile_cover_and_never_asked_to_go() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights, at=1)
    story.looks_at(loss, compute, at=2)
    side.reads(weights, at=3)
    story.looks_at(loss, compute, at=4)
    by_line, found = judged(story)
    assert {line: one.load for line, one in by_line.items()} == {2: FRAGILE, 4: REDUNDANT}
    assert by_line[4].why == "it orders no two accesses by itself"
    assert found.together == ()


def test_a_wait_that_only_a_read_makes_redundant_is_said_to_be_and_cannot_go() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    compute.writes(weights, at=1)
    story.looks_at(loss, compute, at=2)
    side.waits_for(compute, at=3)
    side.reads(weights, at=4)
    by_line, found = judged(story)
    assert (by_line[3].load, by_line[3].by_chance) == (REDUNDANT, True)
    assert found.together == ()


def freed(story: Story, *, at: int | None, knows: bool = False, again: bool = False) -> dict[int, str]:
    compute, side = story.streams("compute", "side")
    buffer = story.block(on=compute)
    compute.writes(buffer, at=1)
    side.waits_for(compute, at=2)
    side.reads(buffer, at=3)
    story.record_stream(buffer, side, at=at)
    if knows:
        compute.waits_for(side, at=5)
    story.lets_go(buffer)
    if again:
        compute.writes(story.again(buffer, on=compute, at=6), at=7)
    return loads(story)


def test_a_record_stream_carries_load_where_the_memory_is_handed_out_too_early_without_it() -> None:
    assert freed(Story(), at=4, again=True) == {2: CARRIES, 4: CARRIES}


def test_nothing_is_known_of_one_whose_memory_nobody_got() -> None:
    assert freed(Story(), at=4) == {2: CARRIES, 4: UNKNOWN}


def test_it_is_redundant_where_its_owner_waits_before_the_free() -> None:
    expected = {2: CARRIES, 4: REDUNDANT, 5: REDUNDANT}
    assert freed(Story(), at=4, knows=True, again=True) == expected
    assert freed(Story(), at=4, knows=True) == expected


def test_then_only_one_of_the_two_can_go() -> None:
    story = Story()
    freed(story, at=4, knows=True, again=True)
    _, found = judged(story)
    assert len(found.together) == 1


def test_a_record_stream_for_which_two_lines_ask_stays_without_one_of_them() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    buffer = story.block(on=compute)
    side.reads(buffer, at=3)
    story.record_stream(buffer, side, at=4)
    story.asks("tensor.record_stream", side, 5, buffer.block)
    story.lets_go(buffer)
    compute.writes(story.again(buffer, on=compute, at=6), at=7)
    by_line, found = judged(story)
    assert {line: one.load for line, one in by_line.items()} == {4: REDUNDANT, 5: REDUNDANT}
    assert len(found.together) == 1


def test_races_that_are_there_anyway_are_not_laid_to_a_wait() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, other = story.block(), story.block()
    compute.writes(weights, at=1)
    side.reads(weights, at=2)
    side.waits_for(compute, at=3)
    by_line, found = judged(story)
    assert len(found.base) == 1
    assert by_line[3].load == REDUNDANT
    compute.writes(other, at=4)
    side.waits_for(compute, at=5)
    side.reads(other, at=6)
    by_line, _ = judged(story)
    assert by_line[5].load == CARRIES
    assert [race.first.stack[0].line for race in by_line[5].races] == [4]


def test_a_wait_that_a_collective_makes_at_the_line_of_another_is_no_wait_of_the_line() -> None:
    """``gather(async_op=True).wait()``: the first wait of the line is the collective's own."""
    story = Story()
    group = story.group(0, 0)
    compute, comm = story.streams("compute", "comm")
    for _ in range(2):
        story.adds(Wait(comm.number, compute.records(), story.stack(7)))
        comm.collective(group, at=7)
        compute.waits_for(comm, at=7)
    by_line, found = judged(story)
    assert by_line[7].count == 2
    assert found.others == 2


def test_what_a_wait_costs_is_how_much_earlier_its_stream_could_have_gone_on_without_it_alone() -> None:
    story = Story()
    compute, side, third = story.streams("compute", "side", "third")
    first, second = story.block(), story.block()
    compute.writes(first, time=(0, 100))
    third.writes(second, time=(0, 70))
    side.waits_for(compute, at=2)
    side.waits_for(third, at=3)
    side.reads([first, second], time=(100, 110))
    story.trace.append(story.trace.pop()._replace(issued=0))  # type: ignore[call-arg]
    by_line, _ = judged(story)
    assert (by_line[2].held_ns, by_line[3].held_ns) == (30, 0)
