"""Each wait of the rings is needed: without it the detector finds a race, and with all of them none.

NCCL makes one work of a send and its receive, and does it on its group's one stream: that orders a group's hops among
themselves, whoever waits. Rings are for any backend, so their waits are judged where each is a work of its own; what
NCCL does not need of them is told too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from streamrace.detectors import RaceDetector
from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank
from streamrace.scenarios.sharding import ring_hops, rings
from streamrace.scenarios.sharding.lanes import LaneOrder, Mark, Streams
from streamrace.scenarios.sharding.rings import Collectives
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.topology import Topology
from streamrace.trace.files import TraceReader, file_of
from tests.sharding import ring_cases as of
from tests.sharding.ranks import together

SHAPES = [(2, 3), (3, 2), (3, 1)]
RANKS = 6
ELEMENTS = 2 * of.CHUNK  # of a block
GATHERED = {Sync.INPUT_BEFORE_RING, Sync.ARRIVAL_BEFORE_HOP, Sync.RING_BEFORE_OUTPUT}
REDUCED = {Sync.INPUT_BEFORE_RING, Sync.ARRIVAL_BEFORE_SUM, Sync.SENT_BEFORE_REUSE, Sync.RING_BEFORE_OUTPUT}
WAITS = {
    ("flat", "all_gather"): GATHERED,
    ("flat", "reduce_scatter"): REDUCED,
    ("hierarchical", "all_gather"): GATHERED | {Sync.ARRIVAL_BEFORE_TURN},
    ("hierarchical", "reduce_scatter"): REDUCED,
    ("ho in chunks", "all_gather"): GATHERED | {Sync.ARRIVAL_BEFORE_TURN},
    ("ho in chunks", "reduce_scatter"): REDUCED | {Sync.TURN_BEFORE_HOP},
}
BY_NCCL = {
    ("flat", "all_gather"): {Sync.ARRIVAL_BEFORE_HOP},
    ("flat", "reduce_scatter"): {Sync.SENT_BEFORE_REUSE},
    ("hierarchical", "all_gather"): {Sync.ARRIVAL_BEFORE_HOP},
    ("hierarchical", "reduce_scatter"): {Sync.SENT_BEFORE_REUSE},
    ("ho in chunks", "all_gather"): {Sync.ARRIVAL_BEFORE_HOP},
    ("ho in chunks", "reduce_scatter"): set(),
}
"""Waits in whose place its stream stands, in every topology."""
FILES = (rings.__file__, ring_hops.__file__)
Place = tuple[str, ...]


class Step(NamedTuple):
    """A call from which something is taken away: the waits of a name, or those of a place; "" and (): nothing."""

    shape: tuple[int, int]
    ring: str
    operation: str
    name: str
    place: Place
    batched: bool = False  # a send and its receive are one work


class Looked(LaneOrder):
    """Notes the places from which it is waited, and leaves out the waits of one."""

    def __init__(self, streams: Streams, step: Step) -> None:
        super().__init__(streams, [Sync(step.name)] if step.name else [])
        self.places: dict[Place, Sync] = {}
        self._left_out = step.place

    def wait(self, name: Sync, mark: Mark) -> None:
        if self._wanted(name):
            super().wait(name, mark)

    def arrive(self, name: Sync, *works: dist.Work | None) -> None:
        if self._wanted(name):
            super().arrive(name, *works)

    def _wanted(self, name: Sync) -> bool:
        frame: FrameType | None = sys._getframe(2)
        lines = []
        while frame is not None and frame.f_code.co_filename in FILES:
            lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        self.places[tuple(lines)] = name
        return tuple(lines) != self._left_out


def use(collectives: Collectives, operation: str, ranks: int) -> None:
    """Give what was just computed, use what comes, and overwrite both."""
    small, large = (torch.ones(numel, device="cuda") * 2 for numel in (ELEMENTS, ranks * ELEMENTS))
    if operation == "all_gather":
        collectives.all_gather(large, small)
    else:
        collectives.reduce_scatter(small, large)
    for tensor in (small, large):
        tensor.add_(1)


def race_kinds(folder: Path) -> dict[tuple[int, int], set[str]]:
    """The kinds of races, by step and micro-batch."""
    detector = RaceDetector(examples=None)
    for rank in range(RANKS):
        detector.feed(rank, TraceReader(file_of(folder / "trace", rank)).read())
    detector.finish()
    found: dict[tuple[int, int], set[str]] = {}
    for race in detector.races:
        for one in race.examples:
            assert one.first[1:3] == one.second[1:3]
            found.setdefault(one.first[1:3], set()).add(race.kind)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Step, set[str]]:
    """Each ring and operation as it is, without each name, and without each place: the kinds of races."""

    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        streams, by_nccl = of.streams_of(device), dist.batch_isend_irecv
        taken: list[tuple[int, int, Step]] = []
        for shape, topology in of.topologies(SHAPES).items():
            count = 0

            def run(step: Step, topology: Topology) -> dict[Place, Sync]:
                nonlocal count
                count += 1
                order = Looked(streams, step)
                collectives = of.RINGS[step.ring](topology, order)
                dist.batch_isend_irecv = by_nccl if step.batched else of.two_works
                device.phase(count, SHAPES.index(step.shape), "step")
                before = device.blocked
                use(collectives, step.operation, topology.ranks)
                assert device.blocked == before
                device.synchronize()
                taken.append((count, SHAPES.index(step.shape), step))
                return order.places

            for ring, operation in WAITS:
                whole = Step(shape, ring, operation, "", ())
                places = run(whole, topology)
                for name in sorted(set(places.values())):
                    run(whole._replace(name=name), topology)
                for place in places:
                    run(whole._replace(place=place), topology)
                for name in ("", *sorted(set(places.values()))):
                    run(whole._replace(name=name, batched=True), topology)
        return taken

    folder = tmp_path_factory.mktemp("rings")
    said = together(RANKS, program, folder, silence_s=800)
    races = race_kinds(folder)
    steps = {}
    for number, at, (shape, ring, operation, name, place, batched) in said[0]:
        step = Step(tuple(shape), ring, operation, name, tuple(place), batched)
        steps[step] = races.get((number, at), set())
    return steps


def test_with_all_of_them_there_is_no_race(found: dict[Step, set[str]]) -> None:
    whole = {step: races for step, races in found.items() if not step.name and not step.place}
    assert len(whole) == 2 * len(SHAPES) * len(WAITS)
    assert not any(whole.values())


@pytest.mark.parametrize(("ring", "operation"), WAITS, ids=str)
def test_without_any_one_there_is(ring: str, operation: str, found: dict[Step, set[str]]) -> None:
    named = [step for step in found if step[1:3] == (ring, operation) and step.name and not step.batched]
    assert [step for step in named if not found[step]] == []
    assert {step.name for step in named} == WAITS[ring, operation]


@pytest.mark.parametrize(("ring", "operation"), WAITS, ids=str)
def test_what_nccl_does_on_one_stream_needs_fewer(ring: str, operation: str, found: dict[Step, set[str]]) -> None:
    named = [step for step in found if step[1:3] == (ring, operation) and step.name and step.batched]
    assert {step.name for step in named} - {step.name for step in named if found[step]} == BY_NCCL[ring, operation]


@pytest.mark.parametrize(("ring", "operation"), WAITS, ids=str)
def test_each_place_is_needed_in_some_topology(ring: str, operation: str, found: dict[Step, set[str]]) -> None:
    places = {step.place for step in found if step[1:3] == (ring, operation) and step.place}
    assert len(places) >= len(WAITS[ring, operation])
    needed = {step.place for step, races in found.items() if step[1:3] == (ring, operation) and step.place and races}
    assert places - needed == set()
