"""What a missing wait does to training, and that with all waits in place no timing changes a bit.

One run is recorded and executed again under other timings; what training uses is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from streamrace.detectors import RaceDetector
from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank
from streamrace.fuzz.campaign import campaign
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import witness
from streamrace.scenarios.sharding.lanes import LaneOrder, TracedStreams
from streamrace.scenarios.sharding.rings import RINGS, HoRing
from streamrace.scenarios.sharding.strategy import strategy
from streamrace.scenarios.sharding.synchronisations import Sync, of_engine
from streamrace.scenarios.sharding.topology import Topology
from tests.sharding.ranks import together
from tests.sharding.ring_cases import two_works
from tests.sharding.test_ring_races import BY_NCCL, WAITS
from tests.sharding.training import batch, engine, net, probed


def recorded(name: str, folder: Path, *, without: Collection[Sync] = (), rings: str = "torch") -> Subject:
    """Two steps of two micro-batches on 2 x 2 ranks."""

    def program(me: Rank, device: Device | None) -> None:
        assert device is not None
        made = engine(
            net(), strategy(name), Topology.of(2), device, accumulation=2, without=without, across=RINGS.get(rings)
        )
        probed(made, device)
        for step in (1, 2):
            for micro_batch in (1, 2):
                device.phase(step, micro_batch, "forward")
                loss = made(*batch(me.rank, step, micro_batch, of=made))
                device.probe("loss", "", loss.detach(), lambda value: None)
                device.phase(step, micro_batch, "backward")
                made.backward(loss)
                device.phase(step, micro_batch, "step")
                made.step()
        for what, kept in made.partitions():
            device.probe("final", what, kept, lambda value: None, finally_=True)

    together(4, program, folder, record=True, nodes_of=(0, 0, 1, 1))
    return Subject.load(folder / "trace")


def harmful(subject: Subject) -> bool:
    """Does a timing that executes one of the races' pairs the other way round change what training uses?"""
    return any(witness(subject, race).harmful for race in subject.races)


@pytest.mark.parametrize("wait", sorted(of_engine(strategy("IIG"))))
def test_without_a_wait_of_the_engine_there_is_a_harmful_timing(wait: Sync, tmp_path: Path) -> None:
    assert harmful(recorded("IIG", tmp_path, without={wait}))


def test_without_any_wait_of_ho_ring_there_is_a_harmful_timing(tmp_path: Path) -> None:
    """3 groups of 2: with fewer, nothing is sent on, and no buffer comes to its second turn.

    As NCCL does it, but for the waits in whose place NCCL's stream stands.
    """
    calls = [
        (operation, wait)
        for (ring, operation), waits in WAITS.items()
        if ring == "ho in chunks"
        for wait in sorted(waits)
    ]

    def program(me: Rank, device: Device | None) -> None:
        assert device is not None
        topology, by_nccl = Topology.of(2), dist.batch_isend_irecv
        for step, (operation, wait) in enumerate(calls, 1):
            dist.batch_isend_irecv = two_works if wait in BY_NCCL["ho in chunks", operation] else by_nccl
            device.phase(step, 1, "step")
            ring = HoRing(topology, LaneOrder(TracedStreams(device), {wait}), chunk=5)
            part = torch.arange(10.0, device="cuda") + 100 * me.rank
            whole = torch.arange(60.0, device="cuda") * (me.rank + 1)
            if operation == "all_gather":
                ring.all_gather(whole, part)
            else:
                ring.reduce_scatter(part, whole)
            for name, tensor in (("part", part), ("whole", whole)):
                device.probe("parameter", f"{name} of {step}", tensor.clone(), lambda value: None)
                tensor.add_(1)  # what is still sent must not be that
            device.synchronize()

    together(6, program, tmp_path, record=True, nodes_of=(0, 0, 1, 1, 2, 2), silence_s=800)
    subject = Subject.load(tmp_path / "trace")
    detector = RaceDetector(examples=None)
    for rank, records in subject.recording.records.items():
        detector.feed(rank, records)
    detector.finish()
    harmed = set()
    for race in detector.races:
        for one in race.examples:
            at = one.second.step
            if at not in harmed and witness(subject, replace(race, examples=(one,))).harmful:
                harmed.add(at)
    assert {calls[at - 1] for at in harmed} == set(calls)


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.wide)])
@pytest.mark.parametrize(("name", "rings"), [("IIG", "torch"), ("IGG", "ho-ring")])
def test_with_all_waits_in_place_no_timing_changes_a_bit(name: str, rings: str, count: int, tmp_path: Path) -> None:
    subject = recorded(name, tmp_path, rings=rings)
    assert subject.races == []
    found = campaign(subject, examples=count, seed=8)
    assert len(found.tried) >= 0.9 * count  # what is drawn twice is executed once
    assert found.diverged == 0
