"""What is shared rests on what effects are said to touch: it is tried out, and where it is wrong nothing is shared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from fuzz.subject import Subject
from replay import footprints
from replay.deviations import OperationDelay, Stretch
from replay.faults import ReplayError
from replay.footprints import Footprint, Footprints
from replay.record import record
from replay.recording import Recording
from replay.replayer import Replayer, ReplayOutcome
from replay.sharing import SharingReplayer
from simgpu.device import Device
from simgpu.trace import Access, Launch

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
            timing = subject.timing([OperationDelay(name, "long", amount), Stretch("stream:side", 2.0)])
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


@pytest.mark.parametrize("change", [forgets_a_read, forgets_what_it_changes, forgets_a_write, forgets_the_end])
def test_what_is_not_is_noticed(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Footprints.of

    def wrong(self: Footprints, effect: Any) -> Footprint:
        made = whole(self, effect)
        change(made)
        return made

    monkeypatch.setattr(footprints.Footprints, "of", wrong)
    subject = Subject(recorded())
    both(subject, subject.sharing)
    assert "not said to" in subject.sharing.reason
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
