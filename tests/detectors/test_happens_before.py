"""What happens-before orders, what it does not, and what is said of a race."""

from __future__ import annotations

import json

import pytest

from streamrace.detectors import Name, RaceDetector, site
from streamrace.detectors.order.clocks import Threads
from streamrace.detectors.order.happens_before import HappensBefore
from streamrace.trace.records import Frame, Launch, Record
from tests.detectors.story import Named, Story, StoryHost, StoryStream, View

# -- one pair of accesses -------------------------------------------------------------------------


def test_two_reads_never_race() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.reads(a)
    gather.reads(a)
    story.assert_clean()


def test_one_stream_is_in_order() -> None:
    story = Story()
    (compute,) = story.streams("compute")
    a = story.block()
    compute.writes(a)
    compute.runs(reads=a, writes=a)
    compute.writes(a)
    story.assert_clean()


def test_write_and_read_without_a_wait() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_wait_orders_a_read_after_a_write() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.waits_for(compute)
    gather.reads(a)
    story.assert_clean()


def test_a_host_wait_orders_what_the_event_came_behind() -> None:
    """The host waits for one stream, which has waited for another: what is launched next comes behind both."""
    story = Story()
    compute, gather, copy = story.streams("compute", "gather", "copy")
    a = story.block()
    compute.writes(a)
    gather.waits_for(compute)
    story.synchronizes(gather)
    copy.reads(a)
    story.assert_clean()


def test_write_after_read() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.reads(a)
    gather.writes(a)
    story.assert_race("read-write compute gather")


def test_write_after_read_with_a_wait() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.reads(a)
    gather.waits_for(compute)
    gather.writes(a)
    story.assert_clean()


def test_two_writes() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.writes(a)
    story.assert_race("write-write compute gather")


def test_an_in_place_operation_both_reads_and_writes() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.runs(reads=a, writes=a)
    gather.runs(reads=a, writes=a)
    story.assert_race("write-read compute gather", "write-write compute gather")


def test_each_unordered_reader_races_with_the_write() -> None:
    story = Story()
    one, two, three = story.streams("one", "two", "three")
    a = story.block()
    one.reads(a)
    two.reads(a)
    three.writes(a)
    story.assert_race("read-write one three", "read-write two three")


def test_a_race_does_not_hide_the_next() -> None:
    story = Story()
    one, two, three = story.streams("one", "two", "three")
    a = story.block()
    one.writes(a)
    two.writes(a)
    three.waits_for(two)
    three.reads(a)
    story.assert_race("write-write one two", "write-read one three")


# -- events ---------------------------------------------------------------------------------------


def test_event_recorded_before_the_second_write() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    event = compute.records()
    compute.writes(a)
    gather.waits(event)
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_event_recorded_again_after_the_wait() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    gather.waits(compute.records())
    compute.writes(a)
    compute.records()
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_a_marker_may_be_waited_for_twice() -> None:
    story = Story()
    compute, gather, reduce = story.streams("compute", "gather", "reduce")
    a = story.block()
    compute.writes(a)
    event = compute.records()
    gather.waits(event)
    gather.waits(event)
    reduce.waits(event)
    gather.reads(a)
    reduce.reads(a)
    story.assert_clean()


def test_wait_by_another_stream() -> None:
    story = Story()
    compute, gather, reduce = story.streams("compute", "gather", "reduce")
    a = story.block()
    compute.writes(a)
    reduce.waits_for(compute)
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_order_is_transitive() -> None:
    story = Story()
    compute, gather, reduce = story.streams("compute", "gather", "reduce")
    a = story.block()
    compute.writes(a)
    reduce.waits_for(compute)
    gather.waits_for(reduce)
    gather.writes(a)
    story.assert_clean()


def test_a_marker_carries_what_its_stream_waited_for_without_work_of_its_own() -> None:
    story = Story()
    compute, gather, reduce = story.streams("compute", "gather", "reduce")
    a = story.block()
    reduce.reads(story.block())
    early = reduce.records()
    compute.writes(a)
    reduce.waits_for(compute)
    late = reduce.records()
    gather.waits(early)
    gather.waits(late)
    gather.reads(a)
    story.assert_clean()


def test_waiting_for_a_marker_orders_nothing_backwards() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    gather.waits_for(compute)
    gather.writes(a)
    compute.reads(a)
    story.assert_race("write-read gather compute")


# -- the host -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["synchronize", "read", "query"])
def test_host_waits(how: str) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    story.waits(compute.records(), how)
    gather.reads(a)
    story.assert_clean()


def test_host_waits_for_an_earlier_marker() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    event = compute.records()
    compute.writes(a)
    story.waits(event)
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_host_waits_for_one_marker_and_a_stream_for_the_next() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    early = compute.records()
    compute.writes(a)
    late = compute.records()
    story.waits(early)
    gather.waits(late)
    gather.reads(a)
    story.assert_clean()


def test_a_host_wait_forgets_no_marker_that_comes_later() -> None:
    """Not even where the marker's number is lower than the epochs that the host has waited for."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    for _ in range(9):
        compute.writes(a)
    early = compute.records()
    compute.writes(a)
    late = compute.records()
    story.waits(early)
    gather.waits(late)
    gather.reads(a)
    story.assert_clean()


def test_a_marker_that_orders_nothing_is_not_remembered() -> None:
    story = Story()
    idle, other = story.streams("idle", "other")
    other.waits(idle.records())
    assert story.fed().live_state == 0


def test_a_marker_that_is_recorded_twice_is_forgotten_twice() -> None:
    """No program does so, but a file may hold anything."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    marker = compute.records()
    story.adds(Record(marker, compute.number))
    story.waits(marker)
    gather.reads(a)
    story.assert_clean()


def test_host_wait_orders_a_stream_that_is_new() -> None:
    story = Story()
    (compute,) = story.streams("compute")
    a = story.block()
    compute.writes(a)
    event = compute.records()
    story.synchronizes(compute)
    (late,) = story.streams("late")
    late.waits(event)  # forgotten by the detector: the host has waited for it
    late.reads(a)
    story.assert_clean()


def test_a_marker_holds_what_the_host_had_waited_for() -> None:
    story = Story()
    compute, idle, gather = story.streams("compute", "idle", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(story.block())
    story.synchronizes(compute)
    gather.waits_for(idle)
    gather.reads(a)
    story.assert_clean()


def test_launching_is_no_waiting() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, b = story.block(), story.block()
    compute.writes(a)
    gather.reads(b)
    compute.reads(b)
    gather.reads(a)
    story.assert_race("write-read compute gather")


# -- views ----------------------------------------------------------------------------------------


def test_base_and_offset_view() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(64)
    compute.writes(a)
    gather.reads(a[40:44])
    story.assert_race("write-read compute gather")
    (race,) = story.races()
    assert (race.examples[0].lo, race.examples[0].hi) == (40, 44)


def test_disjoint_parts() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(64)
    compute.writes(a[0:32])
    gather.reads(a[32:64])
    story.assert_clean()


def test_different_blocks() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    compute.writes(story.block())
    gather.reads(story.block())
    story.assert_clean()


def test_an_empty_view_is_no_access() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(64)
    compute.writes(a)
    gather.reads(a[8:8])
    gather.writes(a[8:8])
    gather.runs(reads=story.block(0), writes=story.block(0))
    story.assert_clean()
    assert story.fed().live_state == 1


def columns(matrix: View, first: int, count: int) -> View:
    """Columns of an 8 x 8 matrix of 4-byte numbers."""
    return matrix.strided(4 * first, 4, (8, count), (32, 4))


def test_interleaved_columns_are_disjoint() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(256)
    compute.writes(columns(a, 0, 4))
    gather.reads(columns(a, 4, 4))
    story.assert_clean()


def test_columns_that_share_one() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(256)
    compute.writes(columns(a, 0, 5))
    gather.reads(columns(a, 4, 4))
    story.assert_race("write-read compute gather")


def test_a_column_and_a_row() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(256)
    compute.writes(columns(a, 3, 1))
    gather.reads(a[64:76])  # row 2, columns 0 to 2
    gather.reads(a[64:80])  # and column 3
    story.assert_race("write-read compute gather")
    assert [race.examples[0].second.op for race in story.races()] == [2]


def test_who_touches_what_lies_between_is_elsewhere() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, b = story.block(64), story.block(64)
    compute.writes(a[4:8])
    gather.reads(a.strided(0, 4, (4,), (8,)))
    compute.writes(b.strided(0, 4, (4,), (8,)))
    gather.writes(b[4:8])
    story.assert_clean()


def test_a_strided_write_does_not_hide_what_lies_between() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(256)
    compute.writes(a)
    compute.writes(a.strided(0, 4, (8, 2), (32, 28)))  # the first and the last column
    gather.reads(columns(a, 1, 1))
    story.assert_race("write-read compute gather")


def test_a_newer_ordered_write_hides_the_older() -> None:
    """One of the pairs is named, the newest: where it is mended the others are, too."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(64)
    compute.writes(a)
    compute.writes(a)
    gather.reads(a)
    assert [race.examples[0].first.op for race in story.races()] == [1]


def test_a_flat_buffer_of_many_parts() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    flat = story.block(8 * 1000)
    for part in range(1000):
        compute.writes(flat[8 * part : 8 * part + 8], at=1)
    gather.waits_for(compute)
    compute.writes(flat[8 * 700 : 8 * 701], at=2)
    gather.reads(flat[8 * 690 : 8 * 700], at=3)
    gather.reads(flat[8 * 699 : 8 * 701], at=4)
    gather.reads(flat, at=5)
    races = story.races()
    assert [(race.first.stack[0].line, race.second.stack[0].line, race.occurrences) for race in races] == [
        (2, 4, 1),
        (2, 5, 1),
    ]


@pytest.mark.parametrize("first", ["reads", "writes"])
def test_the_first_to_touch_a_flat_buffer_of_many_parts_races_with_each(first: str) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    flat = story.block(8 * 20)
    for part in range(20):
        compute.runs(**{first: flat[8 * part : 8 * part + 8]}, at=1)
    gather.runs(**{"writes" if first == "reads" else "reads": flat})
    assert [race.occurrences for race in story.races()] == [20]


def test_races_of_a_few_parts_are_told_in_the_order_in_which_these_were_touched() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    flat = story.block(8 * 16)
    for part in reversed(range(16)):
        compute.writes(flat[8 * part : 8 * part + 8], at=1)
    gather.reads(flat)
    (race,) = story.races()
    assert [example.first.op for example in race.examples] == list(range(8))


# -- collectives ----------------------------------------------------------------------------------


def all_gather(story: Story, *, wait: bool) -> Story:
    (group,) = (story.group(0, 0, 1),)
    for host in story.hosts:
        compute, nccl = host.streams("compute", "nccl")
        shard, full = host.block(), host.block()
        compute.writes(shard)
        nccl.waits_for(compute)
        nccl.collective(group, reads=shard, writes=full)
        if wait:
            compute.waits_for(nccl)
        compute.reads(full)
    return story


def test_a_collective_and_its_wait() -> None:
    all_gather(Story(ranks=2), wait=True).assert_clean()


def test_the_wait_of_a_collective_forgotten() -> None:
    story = all_gather(Story(ranks=2), wait=False)
    story.assert_race("write-read nccl compute")
    assert story.races()[0].ranks == (0, 1)


def test_a_collective_reads_its_input_too_early() -> None:
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    for host in story.hosts:
        compute, nccl = host.streams("compute", "nccl")
        shard, full = host.block(), host.block()
        compute.writes(shard)
        nccl.collective(group, reads=shard, writes=full)
    story.assert_race("write-read compute nccl")


def through_a_peer(
    kernel: str, root: int, *, peer_waits: bool = True, work: bool = True
) -> tuple[Story, StoryStream, StoryStream]:
    """Rank 0 writes, meets rank 1 on one stream, then again on another, and reads there."""
    story = Story(ranks=2)
    there, back = story.group(0, 0, 1), story.group(1, 0, 1)
    here, peer = story.hosts
    one, two = here.streams("one", "two")
    a = here.block()
    one.writes(a)
    one.collective(there, kernel=kernel, root=root)
    two.collective(back)
    two.reads(a)
    theirs, others = peer.streams("theirs", "others")
    theirs.collective(there, kernel=kernel, root=root)
    if work:
        theirs.reads(peer.block())
    if peer_waits:
        others.waits_for(theirs)
    others.collective(back)
    return story, one, two


def test_order_through_another_rank() -> None:
    through_a_peer("nccl::all_reduce", -1)[0].assert_clean()
    through_a_peer("nccl::all_reduce", -1, work=False)[0].assert_clean()


def test_no_order_through_another_rank_whose_streams_are_unordered() -> None:
    through_a_peer("nccl::all_reduce", -1, peer_waits=False)[0].assert_race("write-read one two")


def test_a_host_that_has_waited_knows_nothing_of_another_rank() -> None:
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    here, peer = story.hosts
    one, two = here.streams("one", "two")
    a = here.block()
    one.writes(a)
    two.collective(group)
    two.reads(a)
    (theirs,) = peer.streams("theirs")
    theirs.reads(peer.block())
    peer.synchronizes(theirs)
    theirs.collective(group)
    story.assert_race("write-read one two")


@pytest.mark.parametrize(
    ("kernel", "root", "ordered"),
    [
        ("nccl::broadcast", 0, True),
        ("nccl::broadcast", 1, False),
        ("nccl::scatter", 0, True),
        ("nccl::scatter", 1, False),
        ("nccl::reduce", 0, False),
        ("nccl::reduce", 1, True),
        ("nccl::gather", 0, False),
        ("nccl::gather", 1, True),
        ("nccl::send", 0, True),
        ("nccl::recv", 1, False),
    ],
)
def test_rooted_collectives_order_one_way(kernel: str, root: int, ordered: bool) -> None:
    story, _, _ = through_a_peer(kernel, root)
    if ordered:
        story.assert_clean()
    else:
        story.assert_race("write-read one two")


def test_peers_never_learn_that_a_member_has_written() -> None:
    """The collective that carries order back to rank 0 began after the first had begun, not after it had ended."""
    story = Story(ranks=2)
    there, back = story.group(0, 0, 1), story.group(1, 0, 1)
    here, peer = story.hosts
    one, two = here.streams("one", "two")
    a = here.block()
    one.collective(there, writes=a)
    two.collective(back)
    two.reads(a)
    theirs, others = peer.streams("theirs", "others")
    theirs.collective(there)
    others.waits_for(theirs)
    others.collective(back)
    story.assert_race("write-read one two")


def test_send_and_receive_in_a_larger_group() -> None:
    story = Story(ranks=3)
    group = story.group(0, 0, 1, 2)
    for host, kernel in zip(story.hosts[1:], ("nccl::recv", "nccl::send"), strict=True):
        compute, nccl = host.streams("compute", "nccl")
        a = host.block()
        receives = kernel == "nccl::recv"
        nccl.collective(group, kernel=kernel, root=2, reads=() if receives else a, writes=a if receives else ())
        compute.reads(a)
    story.assert_race("write-read nccl compute")
    assert story.fed().live_state == story.fed(shuffled_by=1).live_state


def test_two_sends_at_once_are_two() -> None:
    """Of the same group and number; each receiver waits for its own source."""
    story = Story(ranks=4)
    group = story.group(0, 0, 1, 2, 3)
    for rank, kernel, root in ((0, "send", 0), (1, "recv", 0), (2, "send", 2), (3, "recv", 2)):
        host = story.hosts[rank]
        (nccl,) = host.streams("nccl")
        nccl.collective(group, kernel=f"nccl::{kernel}", root=root)
    for order in ((0, 1, 2, 3), (1, 3, 0, 2), (0, 2, 1, 3)):
        detector = RaceDetector()
        for rank in order:
            detector.feed(rank, story.hosts[rank].trace)
        assert not any(detector.waits(rank) for rank in order)


def test_a_send_and_a_collective_may_have_one_number() -> None:
    story = Story(ranks=3)
    group = story.group(0, 0, 1, 2)
    for host, kernel in zip(story.hosts, ("", "nccl::send", "nccl::recv"), strict=True):
        (nccl,) = host.streams("nccl")
        if kernel:
            nccl.collective(group, kernel=kernel, root=1)
            host.numbers[group] = 0
        nccl.collective(group)
    detector = RaceDetector()
    for host in story.hosts:
        detector.feed(host.rank, host.trace)
    assert not any(detector.waits(rank) for rank in range(3))


# -- memory that is freed -------------------------------------------------------------------------


def freed(*, record_stream: bool, wait: bool) -> Story:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    compute.writes(a)
    gather.waits_for(compute)
    gather.reads(a)
    if record_stream:
        story.record_stream(a, gather)
    if wait:
        compute.waits_for(gather)
    story.frees(a)
    return story


def test_freed_while_another_stream_reads() -> None:
    story = freed(record_stream=False, wait=False)
    story.assert_race("freed gather compute")
    (race,) = story.races()
    assert (race.first.access, race.second.access, race.second.kernel) == ("read", "free", "free")
    assert race.examples[0].second.op is None
    assert race.missing_wait == (
        "stream 'compute' never waits for stream 'gather' after cat (model.py:1 forward), "
        "and no record_stream tells the allocator of that use before the memory is freed"
    )


def test_freed_after_record_stream() -> None:
    freed(record_stream=True, wait=False).assert_clean()


def test_freed_after_a_wait() -> None:
    freed(record_stream=False, wait=True).assert_clean()


def test_freed_on_another_stream_after_the_host_waited() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block(on=compute)
    gather.writes(a)
    story.synchronizes(gather)
    story.frees(a)
    story.assert_clean()


def test_record_stream_does_not_make_the_owner_wait() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, b = story.block(on=compute), story.block()
    gather.writes(b)
    gather.reads(a)
    story.record_stream(a, gather)
    story.frees(a)
    compute.reads(b)
    story.assert_race("write-read gather compute")


def test_freed_without_a_seen_allocation() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.reads(a)
    gather.reads(a)
    story.frees(a)
    story.assert_clean()


# -- several ranks --------------------------------------------------------------------------------


def busy_story() -> Story:
    """Three ranks, two groups, races of all kinds, labels, frees."""
    story = Story(ranks=3)
    world, pair = story.group(0, 0, 1, 2), story.group(1, 1, 2)
    for host in story.hosts:
        compute, nccl = host.streams("compute", "nccl")
        for step in range(6):
            host.phase(step, 0, "forward")
            a, b = host.block(on=compute), host.block(on=nccl)
            compute.writes(a, at=1)
            if (step + host.rank) % 3:
                nccl.waits_for(compute)
            nccl.collective(world, reads=a, writes=b, at=2)
            if host.rank:
                nccl.collective(pair, reads=b, writes=a, kernel="nccl::broadcast", root=1 + step % 2, at=3)
            if step % 2:
                compute.waits_for(nccl)
            compute.runs(reads=b, writes=a, at=4)
            host.labels(a, "secondary", f"layer.{step}")
            host.frees(a)
            host.frees(b)
    return story


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_gives_the_same_races(seed: int) -> None:
    story = busy_story()
    expected = story.fed()
    shuffled = story.fed(shuffled_by=seed)
    assert len(expected.races) > 4
    assert shuffled.races == expected.races
    assert shuffled.count == expected.count


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_dies(seed: int) -> None:
    """Rank 2 ends in the middle; what the others did after that is still checked, whoever is fed first."""
    story = busy_story()
    dead = story.hosts[2]
    dead.trace = dead.trace[: len(dead.trace) // 2]
    expected = story.fed()
    assert any(example.first.step == 5 for race in expected.races for example in race.examples)
    assert story.fed(shuffled_by=seed).races == expected.races


def test_a_rank_that_never_came() -> None:
    story = all_gather(Story(ranks=2), wait=False)
    detector = RaceDetector()
    detector.feed(0, story.hosts[0].trace)
    assert detector.races == [] and detector.waits(0)
    detector.finish()
    assert [race.ranks for race in detector.races] == [(0,)]
    assert not detector.waits(0)
    with pytest.raises(ValueError, match="finished"):
        detector.feed(1, [])


def test_of_ranks_that_wait_in_a_row_the_last_is_given_up_first() -> None:
    """Rank 2 died. Rank 1 waits for it, and rank 0 for rank 1, which goes on and orders rank 0's streams."""
    story = Story(ranks=3)
    both, dead = story.group(0, 0, 1), story.group(1, 1, 2)
    first, second, _ = story.hosts
    copy, compute = first.streams("copy", "compute")
    (nccl,) = second.streams("nccl")
    a = first.block()
    copy.writes(a)
    copy.collective(both)
    nccl.collective(both)
    nccl.collective(dead)
    compute.collective(both)
    nccl.collective(both)
    compute.reads(a)
    story.assert_clean()


def test_a_collective_that_was_given_up_holds_up_nobody() -> None:
    """Ranks 1 and 2 issue two groups' collectives crosswise, and rank 0 is given up first; rank 1 goes on without 2."""
    story = Story(ranks=3)
    everyone, one, two = story.group(0, 0, 1, 2), story.group(1, 1, 2), story.group(2, 1, 2)
    first, second, third = story.hosts
    (alone,) = first.streams("nccl")
    alone.collective(everyone)
    copy, nccl, compute = second.streams("copy", "nccl", "compute")
    a = second.block()
    nccl.collective(one)
    copy.writes(a)
    copy.collective(two)
    compute.collective(everyone)
    compute.reads(a)
    (theirs,) = third.streams("nccl")
    for group in (two, one, everyone):
        theirs.collective(group)
    story.assert_race("write-read copy compute")


def test_a_probe_of_the_watch_is_no_access_and_takes_its_turn() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a, kernel="detectors::sums")
    story.assert_clean()
    compute.waits_for(gather)
    gather.reads(a)
    story.assert_race("write-read compute gather")


def test_crossed_collectives_end() -> None:
    """Hosts that issue two groups' collectives in different orders: followed to the end, with less order."""
    story = Story(ranks=2)
    one, two = story.group(0, 0, 1), story.group(1, 0, 1)
    for host, order in zip(story.hosts, ((one, two), (two, one)), strict=True):
        compute, nccl = host.streams("compute", "nccl")
        nccl.collective(order[0])
        compute.collective(order[1])
        a = host.block()
        compute.writes(a)
        nccl.reads(a)
    story.assert_race("write-read compute nccl")
    assert story.races()[0].ranks == (0, 1)
    assert story.fed(shuffled_by=3).races == story.races()


# -- what is said of a race -----------------------------------------------------------------------


def test_occurrences_of_one_pair_of_places_are_one_race() -> None:
    story = Story(ranks=2)
    for host in story.hosts:
        compute, gather = host.streams("compute", "gather")
        for step in range(10):
            host.phase(step, 1, "backward")
            a = host.block()
            compute.writes(a, at=1946)
            gather.reads(a, at=1200)
    (race,) = story.races()
    assert race.occurrences == 20 and race.ranks == (0, 1)
    assert len(race.examples) == 8
    assert [example.rank for example in race.examples] == [0] * 8
    assert race.examples[3].first[:4] == (6, 3, 1, "backward")
    assert story.fed().count == 20


def test_other_places_streams_or_kernels_are_other_races() -> None:
    story = Story()
    compute, gather, nccl = story.streams("compute", "gather", "nccl")
    for at, stream, kernel in (
        (1, gather, "aten::cat"),
        (2, gather, "aten::cat"),
        (2, nccl, "aten::cat"),
        (2, nccl, "x"),
    ):
        a = story.block()
        compute.writes(a, at=0)
        stream.reads(a, at=at, kernel=kernel)
    assert len(story.races()) == 4


def test_missing_wait_names_streams_and_place() -> None:
    story = Story()
    compute, gather = story.streams("compute", "all-gather")
    a = story.block()
    compute.writes(a, at=1946)
    gather.reads(a)
    (race,) = story.races()
    assert (
        race.missing_wait == "stream 'all-gather' never waits for stream 'compute' after copy_ (model.py:1946 forward)"
    )
    assert str(race.second) == "read by cat (model.py:1 forward) on stream 'all-gather'"


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [((0, 10), (0, 9), True), ((0, 10), (5, 10), False), ((0, 10), (10, 11), False)],
)
def test_shown_when_the_second_took_effect_before_the_first(
    first: tuple[int, int], second: tuple[int, int], shown: bool
) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a, time=first)
    gather.reads(a, time=second)
    (race,) = story.races()
    assert (race.manifested, race.examples[0].manifested) == (int(shown), shown)
    assert race.examples[0].first[4:] == first and race.examples[0].second[4:] == second


@pytest.mark.parametrize(("starts", "margin"), [([90, 40, 70], 30), ([90, 5, 70], -5), ([10], 0)])
def test_the_margin_is_that_of_the_occurrence_that_came_closest(starts: list[int], margin: int) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    for start in starts:
        a = story.block()
        compute.writes(a, at=1, time=(0, 10))
        gather.reads(a, at=2, time=(start - 1, start))
    (race,) = story.races()
    assert race.slack_ns == margin == race.as_dict()["slack_ns"]
    assert [example.slack_ns for example in race.examples] == [start - 10 for start in starts]
    assert race.manifested == sum(example.slack_ns < 0 for example in race.examples)


def test_the_margin_is_the_smallest_of_all_ranks() -> None:
    story = Story(ranks=2)
    for host, end in zip(story.hosts, (50, 20), strict=True):
        compute, gather = host.streams("compute", "gather")
        a = host.block()
        compute.writes(a, time=(0, 10))
        gather.reads(a, time=(15, end))
    (race,) = story.races()
    assert (race.ranks, race.slack_ns) == ((0, 1), 10)


@pytest.mark.parametrize(
    ("owner", "recorded", "waited", "margin"),
    [(0, 0, 0, -20), (60, 0, 0, 10), (45, 0, 0, -5), (0, 60, 0, 10), (0, 0, 60, 10), (0, 60, 45, 10)],
)
def test_a_free_takes_effect_when_what_orders_the_reuse_is_done(
    owner: int, recorded: int, waited: int, margin: int
) -> None:
    """Freed at 30 while a read ends at 50; the owner's stream, a recorded one and one waited for are done at these."""
    story = Story()
    compute, reader, copies, other = story.streams("compute", "reader", "copies", "other")
    a, b = story.block(on=compute), story.block()
    for stream, end in ((compute, owner), (copies, recorded), (other, waited)):
        stream.reads(b, time=(0, end))
    reader.reads(a, time=(40, 50))
    story.record_stream(a, copies)
    compute.waits_for(other)
    story.frees(a, time=30)
    (race,) = story.races()
    assert (race.kind, race.slack_ns, race.manifested) == ("freed", margin, int(margin < 0))


def test_a_collective_reads_at_its_start_and_writes_at_its_end() -> None:
    story = Story()
    group = story.group(0, 0)
    compute, nccl = story.streams("compute", "nccl")
    a, b = story.block(), story.block()
    compute.writes(a, time=(0, 10))
    compute.writes(b, time=(10, 20))
    nccl.collective(group, reads=a, writes=b, time=(5, 30))
    assert [(race.kind, race.manifested) for race in story.races()] == [("write-read", 1), ("write-write", 0)]


def test_a_collectives_read_is_over_when_it_has_started() -> None:
    story = Story()
    group = story.group(0, 0)
    compute, nccl = story.streams("compute", "nccl")
    a = story.block()
    nccl.collective(group, reads=a, time=(5, 30))
    compute.writes(a, time=(0, 10))
    assert [(race.kind, race.manifested) for race in story.races()] == [("read-write", 0)]


def labelled(host: StoryHost, *, free: bool) -> None:
    compute, gather = host.streams("compute", "gather")
    a = host.block(64)
    host.labels(a[0:16], "secondary", "untouched")
    compute.writes(a[16:64])
    gather.reads(a[16:40])
    host.labels(a[16:32], "secondary", "layer.0.weight")
    host.labels(a[32:48], "secondary", "layer.1.weight")
    host.labels(a[40:64], "secondary", "layer.2.weight")
    if free:
        host.frees(a)


@pytest.mark.parametrize("free", [True, False])
def test_labels_may_come_after_the_accesses(free: bool) -> None:
    story = Story()
    labelled(story, free=free)
    (race,) = story.races()
    assert race.names == (Name("secondary", "layer.0.weight"), Name("secondary", "layer.1.weight"))


def test_labels_of_a_block_do_not_reach_the_next() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a, b = story.block(), story.block()
    story.labels(b, "primary", "other")
    compute.writes(a)
    gather.reads(a)
    assert story.races()[0].names == ()


def test_a_race_is_json() -> None:
    (race, *_) = busy_story().races()
    told = json.loads(json.dumps(race.as_dict()))
    assert told["kind"] == race.kind and told["missing_wait"] == race.missing_wait
    assert told["first"]["stack"][0] == {"file": "/src/model.py", "line": 1, "function": "forward"}
    assert told["examples"][0]["first"]["phase"] == "forward"
    assert len(told["names"]) == len(race.names) > 0


def test_site_is_the_innermost_frame() -> None:
    inner, outer = Frame("a.py", 1, "f"), Frame("b.py", 2, "g")
    assert site((inner, outer)) == inner
    assert site(()) is None


# -- the detector itself --------------------------------------------------------------------------


def test_state_is_bounded_by_what_is_alive() -> None:
    story = Story(ranks=2)
    group = story.group(0, 0, 1)
    for host in story.hosts:
        compute, gather = host.streams("compute", "gather")
        for step in range(200):
            a = host.block(on=compute)
            compute.writes(a)
            host.labels(a, "gathered", f"layer.{step}")
            if step % 2:
                gather.waits_for(compute)
            gather.collective(group, reads=a, writes=a)
            host.record_stream(a, gather)
            host.frees(a)
            host.synchronizes(gather)
            host.synchronizes(compute)
    detector = story.fed()
    assert detector.count > 0
    assert detector.live_state == 0


def test_a_clock_is_as_long_as_there_are_threads() -> None:
    threads = Threads()
    host = threads.host()
    streams = [threads.stream() for _ in range(5)]
    assert [len(clock.known) for clock in (host, *streams)] == [5] * 6


def test_the_past_of_a_long_lived_block_is_bounded() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    flat = story.block(64)
    for step in range(500):
        (compute, gather)[step % 2].reads(flat[0:32])
        (compute, gather)[step % 3 // 2].writes(flat[16:48])
    order = HappensBefore(lambda first, second, occurrence: Named())
    order.feed(0, story.trace)
    block = order._followers[0].rank._blocks[flat.block]
    assert len(block.reads.everything()) + len(block.writes.everything()) <= 4


def test_accesses_may_be_plain_tuples() -> None:
    detector = RaceDetector()
    for stream in (0, 1):
        access = (1, 0, 8, None)
        detector.feed(0, [Launch(stream, stream, "k", (), (access,), 0, 0, 0, 1)])  # type: ignore[arg-type]
    assert detector.count == 1
