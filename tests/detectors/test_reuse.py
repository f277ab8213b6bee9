"""Memory that is handed out again: what the former owner still does to it, and who has to have waited."""

from __future__ import annotations

import pytest

from streamrace.detectors.order.happens_before import HappensBefore
from streamrace.trace.records import NOBODY, Reuse
from tests.detectors.story import Named, Story, StoryStream, View


def read_and_let_go(story: Story, *, recorded: bool = False) -> tuple[StoryStream, StoryStream, View]:
    """A block of the compute stream, which the gather stream still reads when the program lets go of it."""
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    compute.writes(a)
    gather.waits_for(compute)
    gather.reads(a)
    if recorded:
        story.record_stream(a, gather)
    story.lets_go(a)
    return compute, gather, a


def test_a_free_alone_accuses_nobody() -> None:
    story = Story()
    read_and_let_go(story)
    story.assert_clean()


def test_the_next_owner_writes_under_the_former_ones_reader() -> None:
    story = Story()
    compute, _, a = read_and_let_go(story)
    b = story.again(a, on=compute, at=77)
    story.assert_clean()
    compute.writes(b)
    story.assert_race("reused gather compute")
    (race,) = story.races()
    assert race.missing_wait == (
        "stream 'compute' never waits for stream 'gather' after cat (model.py:1 forward), and no record_stream tells "
        "the allocator of that use before the memory is freed: the allocation model.py:77 forward got it again"
    )
    assert race.as_dict()["second"]["allocated"][0]["line"] == 77


def test_record_stream_keeps_the_memory_from_the_next_owner() -> None:
    story = Story()
    compute, _, a = read_and_let_go(story, recorded=True)
    compute.writes(story.again(a, on=compute))
    story.assert_clean()


def test_record_stream_says_nothing_of_what_comes_behind_the_free() -> None:
    story = Story()
    compute, gather, a = read_and_let_go(story, recorded=True)
    c = story.block(on=gather)
    gather.writes(c)
    compute.writes(story.again(a, on=compute))
    compute.reads(c)
    story.assert_race("write-read gather compute")


def test_who_touches_the_memory_first_has_to_wait_not_its_owner() -> None:
    """The owner's stream knows nothing of the reader; the stream that writes first does."""
    story = Story()
    compute, gather, a = read_and_let_go(story)
    b = story.again(a, on=compute)
    gather.writes(b)
    compute.waits_for(gather)
    compute.writes(b)
    story.assert_clean()


def test_a_first_touch_on_another_stream_has_to_wait_for_the_owner() -> None:
    story = Story()
    compute, other = story.streams("compute", "other")
    a = story.block(on=compute)
    compute.writes(a)
    story.lets_go(a)
    other.writes(story.again(a, on=compute))
    story.assert_race("reused compute other")


def test_bytes_that_the_late_reader_does_not_touch_are_free() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a[0:16])
    story.lets_go(a)
    front, back = story.again(a[0:32], on=compute, last=False), story.again(a[32:64], on=compute)
    compute.writes(back)
    compute.writes(front[16:32])
    story.assert_clean()
    compute.writes(front[8:20])
    story.assert_race("reused gather compute")


def test_the_last_part_to_be_handed_out_has_its_former_reader_too() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a[48:64])
    story.lets_go(a)
    front, back = story.again(a[0:32], on=compute, last=False), story.again(a[32:64], on=compute)
    compute.writes(front)
    story.assert_clean()
    compute.writes(back)
    story.assert_race("reused gather compute")


def test_what_a_former_owner_did_beside_the_part_that_is_handed_out_is_no_business_of_the_new_one() -> None:
    """The new block is put together of halves of two old ones: a late reader of the first's other half is elsewhere."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, c = story.block(on=compute), story.block(on=compute)
    gather.reads(a)
    story.lets_go(a)
    story.lets_go(c)
    new = story.block(on=compute)
    story.adds(Reuse(new.block, a.block, 0, 32, 0, -1, False))
    story.adds(Reuse(new.block, c.block, 32, 64, 32, -1, False))
    compute.writes(new[32:64])
    story.assert_clean()
    compute.writes(new[0:32])
    story.assert_race("reused gather compute")


def test_a_reader_who_has_waited_has_not_waited_for_the_others() -> None:
    story = Story()
    compute, other = story.streams("compute", "other")
    a = story.block(on=compute)
    compute.writes(a)
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.reads(b)
    story.assert_clean()
    other.reads(b)
    story.assert_race("reused compute other")


def test_a_read_of_the_front_says_nothing_of_the_back() -> None:
    story = Story()
    compute, other = story.streams("compute", "other")
    a = story.block(on=compute)
    compute.reads(a)
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.reads(b[0:32])
    other.writes(b[32:64])
    story.assert_race("reused compute other")


def test_a_strided_write_leaves_what_lies_between() -> None:
    """The new owner's write is ordered behind the former's read, and covers every second element of it alone."""
    story = Story()
    compute, other = story.streams("compute", "other")
    a = story.block(on=compute)
    compute.reads(a[0:60])
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.writes(b.strided(0, 4, (8,), (8,)))
    story.assert_clean()
    other.writes(b.strided(4, 4, (8,), (8,)))
    story.assert_race("reused compute other")


def handed_out_in_halves(story: Story, a: View, on: StoryStream) -> list[View]:
    story.lets_go(a)
    return [story.again(a[0:32], on=on, last=False), story.again(a[32:64], on=on)]


def together_again(story: Story, halves: list[View], on: StoryStream) -> View:
    for half in halves:
        story.lets_go(half)
    new = story.block(on=on)
    for lo, half in zip((0, 32), halves, strict=True):
        story.adds(Reuse(new.block, half.block, lo, lo + 32, 0, -1, True))
    return new


def test_a_strided_access_is_handed_on_byte_by_byte() -> None:
    """The second half has its own elements of it alone, at their places: the seventh column of eight is touched."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a.strided(3, 2, (8,), (8,)))
    front, back = handed_out_in_halves(story, a, compute)
    compute.writes(back.strided(0, 3, (4,), (8,)))
    compute.writes(back.strided(5, 3, (3,), (8,)))
    compute.writes(front.strided(5, 6, (3,), (8,)))
    story.assert_clean()
    compute.writes(back[28:32])
    story.assert_race("reused gather compute")


def test_a_part_of_a_part_has_its_elements_at_their_places() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a.strided(0, 1, (8,), (8,)))
    story.lets_go(a)
    part = story.again(a[20:64], on=compute)
    story.lets_go(part)
    part = story.again(part[11:44], on=compute)  # from 31 on
    compute.writes(part[2:9])
    compute.writes(part[0:1])
    story.assert_clean()
    compute.writes(part[9:10])
    story.assert_race("reused gather compute")


def test_an_element_that_is_cut_in_two_belongs_to_both() -> None:
    for part in (0, 1):
        story = Story()
        compute, gather = story.streams("compute", "gather")
        a = story.block(on=compute)
        gather.reads(a.strided(14, 4, (3,), (16,)))  # 14 to 18, 30 to 34, 46 to 50
        half = handed_out_in_halves(story, a, compute)[part]
        compute.writes(half[0:2] if part else half[30:32])
        story.assert_race("reused gather compute")


@pytest.mark.parametrize("strided", [False, True])
def test_parts_of_an_access_that_come_together_again_are_one(strided: bool) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    block = story.block(on=compute)
    gather.reads(block.strided(0, 2, (15,), (4,)) if strided else block)
    for _ in range(8):
        block = together_again(story, handed_out_in_halves(story, block, compute), compute)
    compute.writes(block)
    (race,) = story.races()
    assert race.occurrences == 1
    assert (race.examples[0].lo, race.examples[0].hi) == ((0, 58) if strided else (0, 64))


def test_parts_that_come_together_the_other_way_round_are_two() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a.strided(0, 1, (22,), (3,)))
    swapped = together_again(story, handed_out_in_halves(story, a, compute)[::-1], compute)
    compute.writes(swapped)
    (race,) = story.races()
    assert [(one.lo, one.hi) for one in race.examples] == [(0, 32), (32, 64)]


def test_an_owner_who_touches_nothing_hands_on_what_it_got() -> None:
    story = Story()
    compute, _, a = read_and_let_go(story)
    b = story.again(a, on=compute)
    story.lets_go(b)
    compute.writes(story.again(b[0:8], on=compute))
    story.assert_race("reused gather compute")


def test_an_owner_who_waited_and_wrote_takes_it_upon_itself() -> None:
    story = Story()
    compute, gather, a = read_and_let_go(story)
    b = story.again(a, on=compute)
    compute.waits_for(gather)
    compute.writes(b)
    story.lets_go(b)
    compute.writes(story.again(b, on=compute))
    story.assert_clean()


def test_a_late_write_harms_a_next_owner_who_only_reads() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.writes(a)
    story.lets_go(a)
    compute.reads(story.again(a, on=compute))
    story.assert_race("reused gather compute")


def test_what_the_host_has_waited_for_is_forgotten() -> None:
    story = Story()
    compute, gather, a = read_and_let_go(story)
    story.synchronizes(gather)
    compute.writes(story.again(a, on=compute))
    story.assert_clean()
    story.adds(Reuse(NOBODY, a.block, 0, 0, 0, 0, True))
    story.assert_clean()


def test_what_is_remembered_of_the_freed_is_what_can_be_handed_out() -> None:
    story = Story()
    (compute,) = story.streams("compute")
    a = story.block(on=compute)
    compute.writes(a)
    before = story.fed().live_state
    for _ in range(100):
        story.lets_go(a)
        a = story.again(a, on=compute)
        compute.writes(a)
    assert story.fed().live_state == before


def test_strided_parts_that_never_meet_are_no_race() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a.strided(0, 4, (8,), (8,)))  # the even elements
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.writes(b.strided(4, 4, (8,), (8,)))  # the odd ones
    story.assert_clean()
    compute.writes(b)
    story.assert_race("reused gather compute")


def test_what_lies_right_beside_the_parts_stays_outside() -> None:
    """The new block is put together of halves of two old ones, and their late readers are at the other halves."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, c = story.block(on=compute), story.block(on=compute)
    gather.reads(a[32:64])
    gather.reads(c[0:32])
    story.lets_go(a)
    story.lets_go(c)
    new = story.block(on=compute)
    story.adds(Reuse(new.block, a.block, 0, 32, 0, -1, False))
    story.adds(Reuse(new.block, c.block, 32, 64, 32, -1, False))
    compute.writes(new)
    story.assert_clean()


def test_a_late_reader_beside_the_part_hides_none_in_it() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.reads(a[32:64])
    gather.reads(a[0:32])
    story.lets_go(a)
    compute.writes(story.again(a[0:32], on=compute))
    story.assert_race("reused gather compute")


def test_of_two_owners_the_newer_one_is_named() -> None:
    """Its write waited for the former's reader and covers it: whoever races with that reader races with the write."""
    story = Story()
    compute, gather, other = story.streams("compute", "gather", "other")
    a = story.block(on=compute)
    gather.reads(a)
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.waits_for(gather)
    compute.writes(b)
    other.writes(b)
    story.assert_race("write-write compute other")


@pytest.mark.parametrize("by", ["compute", "gather"])
def test_of_two_readers_the_newer_one_is_named(by: str) -> None:
    """The new owner reads all that the former one read, on the same stream or behind it."""
    story = Story()
    compute, gather, other = story.streams("compute", "gather", "other")
    a = story.block(on=compute)
    gather.reads(a)
    story.lets_go(a)
    b = story.again(a, on=compute)
    compute.waits_for(gather)
    (compute if by == "compute" else gather).reads(b)
    other.writes(b)
    story.assert_race(f"read-write {by} other")


def test_memory_of_a_block_that_was_never_seen_brings_nothing() -> None:
    story = Story()
    (compute,) = story.streams("compute")
    new = story.block(on=compute)
    story.adds(Reuse(new.block, 99, 0, 32, 0, -1, False))
    story.adds(Reuse(new.block, 99, 32, 64, 32, -1, True))
    compute.writes(new)
    story.assert_clean()


def test_what_the_host_has_waited_for_is_not_handed_on() -> None:
    story = Story()
    compute, gather, a = read_and_let_go(story)
    story.synchronizes(gather)
    b = story.again(a, on=compute)
    order = HappensBefore(lambda first, second, occurrence: Named())
    order.feed(0, story.trace)
    assert order._followers[0].rank._blocks[b.block].inherited is None
