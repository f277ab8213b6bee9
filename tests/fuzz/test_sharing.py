"""What is shared rests on what effects are said to touch: it is tried out, and where it is wrong nothing is shared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

from streamrace.device.device import Device
from streamrace.fuzz.subject import Subject
from streamrace.replay import footprints
from streamrace.replay import sharing as module
from streamrace.replay.deviations import OperationDelay, Stretch
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.faults import ReplayError
from streamrace.replay.footprints import Footprint, Footprints
from streamrace.replay.placement import Hold
from streamrace.replay.record import record
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer, ReplayOutcome
from streamrace.replay.sharing import SharingReplayer
from streamrace.trace.records import Access, Launch, Reuse

Change = Callable[[Footprint], None]


def chained(device: Device) -> None:
    """One race: stream ``side`` reads what is written elsewhere, in place, from random numbers."""
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    source, target = torch.ones(100, device="cuda"), torch.ones(300, device="cuda")
    torch.cuda.synchronize()
    target[100:200].copy_(source * 2)
    with torch.cuda.stream(side):
        target[::2].mul_(3)
        total = (torch.nn.functional.dropout(target, 0.5) + torch.rand(300, device="cuda")).sum()
    torch.cuda.synchronize()
    device.probe("loss", "", total, lambda value: None)


@cache
def recorded() -> Recording:
    return record(chained)


def shown(outcome: ReplayOutcome) -> object:
    losses = sorted((look, repr(value)) for look, value in outcome.losses.items())
    return outcome.checksums, losses, sorted(outcome.bad.items()), outcome.departure


def both(subject: Subject, sharing: SharingReplayer) -> None:
    """Some timings come out as they do when they are executed from nothing."""
    for name in (*subject.operations, *subject.operations):
        for amount in (1000, 1 << 20):
            timing = subject.timing([OperationDelay(name, "long", amount), Stretch("stream:side", 2)])
            assert shown(sharing.run(timing)) == shown(subject.replayer.run(timing))


def test_what_is_said_is_the_truth() -> None:
    subject = Subject(recorded())
    both(subject, subject.sharing)
    shared = subject.sharing.shared
    assert not subject.sharing.reason and shared.part and shared.none and not shared.plainly


def forgets_a_read(made: Footprint) -> None:
    made.reads = [one for one in made.reads if one in made.writes]


def forgets_what_it_changes(made: Footprint) -> None:
    made.reads = [one for one in made.reads if one not in made.writes]


def forgets_a_write(made: Footprint) -> None:
    made.writes = []


def forgets_the_end(made: Footprint) -> None:
    made.reads = [one._replace(hi=one.hi - 4) if one.hi > 500 else one for one in made.reads]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (forgets_a_read, "read bytes that their records do not name"),  # of another block
        (forgets_what_it_changes, "reads bytes that its record does not name"),
        (forgets_a_write, "writes bytes that its record does not name"),
        (forgets_the_end, "reads bytes that its record does not name"),
    ],
)
def test_what_is_not_is_noticed(change: Change, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Footprints.of

    def wrong(self: Footprints, effect: Any) -> Footprint:
        made = whole(self, effect)
        change(made)
        return made

    monkeypatch.setattr(footprints.Footprints, "of", wrong)
    subject = Subject(recorded())
    both(subject, subject.sharing)
    assert reason in subject.sharing.reason
    assert not subject.sharing.shared.none
    assert subject.sharing.shared.plainly


def test_a_recording_that_does_not_say_what_its_work_touches() -> None:
    records = list(recorded().records[0])
    at = next(at for at, one in enumerate(records) if isinstance(one, Launch) and one.reads)
    launch = records[at]
    assert isinstance(launch, Launch)
    for access in (Access(launch.reads[0][0], 0, 1 << 40), Access(99, 0, 4)):
        changed: list[Any] = [*records[:at], launch._replace(reads=(access,)), *records[at + 1 :]]
        replayer = Replayer(Recording.of({0: changed}))
        sharing = SharingReplayer(replayer)
        assert sharing.reason
        assert sharing.run().checksums == replayer.run().checksums == replayer.recorded


def test_where_far_too_little_may_be_kept_everything_is_executed() -> None:
    subject = Subject(recorded())
    sharing = SharingReplayer(subject.replayer, kept=0)
    both(subject, sharing)
    assert "kept" in sharing.reason and not sharing.held and not sharing.shared.none


def test_work_that_fails_fails_every_time() -> None:
    def program(device: Device) -> None:
        side = torch.cuda.Stream()
        device.name_stream(side, "side")
        table, rows = torch.ones(4, 3, device="cuda"), torch.full((2,), 1 << 40, device="cuda")
        rows.fill_(1)
        with torch.cuda.stream(side):
            total = torch.nn.functional.embedding(rows, table).sum()
        torch.cuda.synchronize()
        device.probe("loss", "", total, lambda value: None)

    subject = Subject(record(program))
    *_, late = [one for one in subject.operations if "fill_" in one.kernel]
    timing = [OperationDelay(late, "long", 1 << 20)]
    assert not subject.run().diverged
    for _ in range(2):
        with pytest.raises(ReplayError, match="cannot be executed"):
            subject.run(timing)
        assert not subject.run().diverged


def test_what_is_settled_later_ends_it() -> None:
    subject = Subject(recorded())
    subject.run()
    subject.replayer.settle([])
    with pytest.raises(ValueError, match="other effects were settled"):
        subject.run()


def test_what_counts_as_wrong_may_change() -> None:
    """How many numbers are not finite is counted where a value is not the expected one."""

    def program(device: Device) -> None:
        device.probe("parameter", "it", torch.full((3,), float("inf"), device="cuda") * 1, lambda value: None)

    replayer = Replayer(record(program))
    sharing = SharingReplayer(replayer)
    assert sharing.run().bad == {}
    replayer.expected = tuple(one ^ 1 for one in replayer.recorded)
    assert sharing.run().bad == replayer.run().bad == {0: 3}
    replayer.expected = replayer.recorded
    assert sharing.run().bad == replayer.run().bad == {}


def test_what_does_not_come_out_as_it_was_recorded_is_not_shared() -> None:
    replayer = Replayer(recorded())
    replayer.recorded = tuple(one ^ 1 for one in replayer.recorded)
    sharing = SharingReplayer(replayer)
    assert shown(sharing.run()) == shown(replayer.run())
    assert "read bytes that their records do not name" in sharing.reason


def test_what_the_host_brought_is_there_after_it_was_tried_out() -> None:
    """Nothing writes to it, so no replay sets it back."""

    def program(device: Device) -> None:
        total = (torch.arange(10.0).cuda() * 2).sum()
        device.probe("loss", "", total, lambda value: None)

    replayer = Replayer(record(program))
    replayer.settle([])
    sharing = SharingReplayer(replayer)
    assert sharing.run().checksums == replayer.run().checksums == replayer.recorded
    assert not sharing.reason


def test_descriptions_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORDS", 0)
    subject = Subject(recorded())
    timings = [subject.timing([OperationDelay(name, "long", 1 << 20)]) for name in subject.operations]

    def known(timing: DeviceTiming) -> tuple[int, int]:
        assert shown(subject.sharing.run(timing)) == shown(subject.replayer.run(timing))
        return subject.sharing.computations

    assert [known(one) for one in timings] == [known(one) for one in timings]  # each begins with nothing


def holding(device: Device) -> None:
    """Blocks that another stream still reads when they are handed out, if that is late: each is a place of its own."""
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    sums = []
    for number in range(4):
        held = torch.full((1000 * (number + 1),), float(number + 1), device="cuda")
        with torch.cuda.stream(side):
            sums.append(held.sum())
        held.record_stream(side)
        size = held.numel()
        del held
        for _ in range(20):  # meanwhile the side is done with it
            torch.ones(10, device="cuda")
        sums.append(torch.full((size,), 100.0, device="cuda").sum())
    torch.cuda.synchronize()
    for number, one in enumerate(sums):
        device.probe("parameter", str(number), one, lambda value: None)


def moved(subject: Subject, timing: DeviceTiming) -> frozenset[tuple[int, Hold]]:
    """What is handed out too early in this timing, and so has memory of its own."""
    return subject.replayer.holds.late(subject.replayer.graph.timed(timing), subject.replayer.settled)


def test_however_many_places_blocks_have_each_timing_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAYOUTS", 2)
    subject = Subject(record(holding))
    slow = [name for name in subject.operations if "sum" in name.kernel]
    late = [subject.timing([OperationDelay(name, "long", 1 << 20)]) for name in slow]
    timings = [timing for places, timing in {moved(subject, one): one for one in late}.items() if places]
    assert len(timings) > 3
    for timing in (*timings, *timings, *reversed(timings)):  # there and back: the last two are still known
        assert shown(subject.sharing.run(timing)) == shown(subject.replayer.run(timing))
    assert not subject.sharing.reason


def test_work_that_touches_memory_by_two_names_is_not_shared() -> None:
    """It is no function of what it reads: what it reads by one it has written by the other."""
    records = list(record(holding).records[0])
    reuse = next(one for one in records if isinstance(one, Reuse))
    at = next(
        at for at, one in enumerate(records)
        if isinstance(one, Launch) and any(access[0] == reuse.block for access in one.writes)
    )  # fmt: skip
    launch = records[at]
    assert isinstance(launch, Launch)
    access = Access(reuse.former, reuse.start, reuse.start + 4)
    changed: list[Any] = [*records[:at], launch._replace(reads=(*launch.reads, access)), *records[at + 1 :]]
    replayer = Replayer(Recording.of({0: changed}))
    sharing = SharingReplayer(replayer)
    assert "two blocks that share memory" in sharing.reason
    assert sharing.run().checksums == replayer.run().checksums


def finding(device: Device) -> None:
    """A new block that nobody wrote, of the memory of two that another stream still reads when it is late."""
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    clock = torch.ones(10, device="cuda")
    held = [torch.full((size,), float(size), device="cuda") for size in (1024, 640)]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sums = [one.sum() for one in held]
    for one in held:
        one.record_stream(side)
    del held, one
    for _ in range(20):  # meanwhile the side is done with them
        clock.add_(1)
    found = torch.empty(1024 + 640, device="cuda")
    device.probe("parameter", "found", found * 2, lambda value: None)
    torch.cuda.synchronize()
    for number, one in enumerate(sums):
        device.probe("parameter", str(number), one, lambda value: None)


def test_a_block_of_memory_of_its_own_finds_what_all_formers_left() -> None:
    subject = Subject(record(finding))
    first, *_ = [one for one in subject.operations if "sum" in one.kernel]
    timing = subject.timing([OperationDelay(first, "long", 1 << 20)])
    late = moved(subject, timing)
    assert len({hold.former for _, hold in late}) == 2 and len({hold.block for _, hold in late}) == 1
    assert shown(subject.sharing.run(timing)) == shown(subject.replayer.run(timing)) == shown(subject.replayer.run())
    assert not subject.sharing.reason


def test_of_what_the_host_reads_the_first_that_is_another_is_told() -> None:
    def program(device: Device) -> None:
        side = torch.cuda.Stream()
        device.name_stream(side, "side")
        values = [torch.full((4,), float(number), device="cuda") for number in range(1, 4)]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            for value in values[1:]:
                value.mul_(2)
        for value in values:
            value.sum().item()

    subject = Subject(record(program))
    slow = next(one for one in subject.operations if "mul" in one.kernel)
    timing = subject.timing([OperationDelay(slow, "long", 1 << 20)])
    departure = subject.sharing.run(timing).departure
    assert departure is not None and departure == subject.replayer.run(timing).departure


def gathering(device: Device) -> None:
    """On ``side`` is written, too late or not, what is gathered, what is added to that, and what much is made of."""
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    given, gathered = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    large, added = torch.ones(10_000, device="cuda"), torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        given.mul_(2)
        added.sub_(4)
        large.add_(3)
    dist.all_gather_into_tensor(gathered, given)
    total = gathered + added
    for _ in range(5):
        large = large * 5
    torch.cuda.synchronize()
    for number, value in enumerate((total, large)):
        device.probe("parameter", str(number), value, lambda value: None)


def test_a_collective_ends_with_the_data_of_its_own_timing_whoever_used_the_memory_meanwhile() -> None:
    subject = Subject(record(gathering))

    def late(kernel: str) -> DeviceTiming:
        slow = next(one for one in subject.operations if kernel == one.kernel)
        return subject.timing([OperationDelay(slow, "long", 1 << 20)])

    sharing = SharingReplayer(subject.replayer, kept=subject.sharing.written)
    assert sharing.run().checksums == subject.replayer.recorded
    sharing.run(late("add"))  # what that makes of ``large`` drives out what was gathered
    subject.replayer.run(late("mul"))  # gathers something else in the same memory
    seen, timing = sharing.shared.effects, late("sub")
    assert shown(sharing.run(timing)) == shown(subject.replayer.run(timing))
    assert sharing.shared.effects > seen + 2  # the sum, a look at it, and what was given up: the collective's end
    assert not sharing.reason and not sharing.shared.plainly
