"""The rings give what torch's collectives give: on plain gloo and on the simulated GPU, in all topologies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.detectors import find_races
from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank
from streamrace.scenarios.sharding.lanes import LaneOrder, NoStreams
from streamrace.scenarios.sharding.rings import FlatRing, HierarchicalRing, HoRing
from tests.sharding import ring_cases as of
from tests.sharding.ranks import together

# By the number of ranks that are started; who is not in a topology only waits.
SHAPES: dict[int, list[tuple[int, int]]] = {4: [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]}
for groups, group in ((2, 3), (3, 2), (2, 4), (4, 2), (3, 3), (3, 4), (4, 3), (4, 4)):
    SHAPES.setdefault(groups * group, []).append((groups, group))


# Each number of ranks once, on gloo or simulated in turns; the others, and all that is drawn, are wide.
FEW = {(world, bool(place % 2)) for place, world in enumerate(sorted(SHAPES))}


@pytest.mark.parametrize(
    ("world", "simulated", "share"),
    [
        pytest.param(
            *(world, simulated, share),
            id=f"{world}-{'simulated' if simulated else 'gloo'}-{'all' if share == 1 else 'a quarter'}",
            marks=[] if (world, simulated) in FEW and share == 4 else [pytest.mark.wide],
        )
        for world in SHAPES
        for simulated in (False, True)
        for share in (4, 1)
    ],
)
def test_they_give_what_torch_gives(world: int, simulated: bool, share: int, tmp_path: Path) -> None:
    """Equal in all bits where sums are exact, within the bound for n - 1 roundings where they are not; no races."""
    count = -(-(60 if world == 4 else 12) // (5 if simulated else 1) // share)
    drawn = of.drawn(count * len(SHAPES[world]))
    tries = {shape: drawn[at :: len(SHAPES[world])] for at, shape in enumerate(SHAPES[world])}

    def program(me: Rank, device: Device | None) -> Any:
        streams, found = of.streams_of(device), []
        order, place = LaneOrder(streams), streams.device
        for shape, topology in of.topologies(SHAPES[world]).items():
            rings = {name: make(topology, order) for name, make in of.RINGS.items()}
            results = [
                (of.call(rings[one.ring], one, topology, place), of.torchs(one, topology, place))
                for one in tries[shape]
            ]
            if device is not None:
                device.synchronize()
            found += [of.wrong(one, topology, *got) for one, got in zip(tries[shape], results, strict=True)]
        return [len(found), [text for text in found if text][:3]]

    said = together(world, program, tmp_path, simulated=simulated, silence_s=800)
    assert [texts for _, texts in said] == [[]] * world
    assert said[0][0] == len(drawn) == count * len(SHAPES[world])
    if simulated:
        assert [str(race) for race in find_races(tmp_path / "trace")] == []


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        topology = of.topologies([(1, 1)])[1, 1]
        order = LaneOrder(NoStreams())
        for ring in (FlatRing(topology, order), HierarchicalRing(topology, order), HoRing(topology, order)):
            with pytest.raises(ValueError, match=r"4 elements of torch.float32 are not 1 blocks of 3 of torch.float32"):
                ring.all_gather(torch.zeros(4), torch.zeros(3))
            with pytest.raises(ValueError, match=r"4 elements of torch.int64 are not 1 blocks of 4 of torch.float32"):
                ring.reduce_scatter(torch.zeros(4), torch.zeros(4, dtype=torch.int64))
        with pytest.raises(ValueError, match="a chunk of 0 elements holds nothing"):
            HoRing(topology, order, chunk=0)
        return True

    assert together(1, program, tmp_path, simulated=False) == [True]
