"""Collectives to try the rings with: drawn once, the same for all ranks, and what must come out.

One world of ranks has all topologies, as to start a rank takes far longer than to exchange a few numbers: topology
g x m is made of its first g * m ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from streamrace.device.device import Device
from streamrace.scenarios.sharding.lanes import Lane, LaneOrder, NoStreams, Streams, TracedStreams
from streamrace.scenarios.sharding.rings import Collectives, FlatRing, HierarchicalRing, HoRing, TorchCollectives
from streamrace.scenarios.sharding.topology import Topology
from tests.examples import seed

CHUNK = 5  # elements
RINGS: dict[str, Callable[[Topology, LaneOrder], Collectives]] = {
    "flat": FlatRing,
    "hierarchical": HierarchicalRing,
    "ho": HoRing,
    "ho in chunks": lambda topology, order: HoRing(topology, order, chunk=CHUNK),
}
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOVED_ONLY = (torch.bool, torch.int16, torch.complex64)  # gloo does not gather or sum the last two


class Case(NamedTuple):
    """``size``: elements of a block, or of what is reduced. ``whole``: values are small integers, with exact sums."""

    ring: str
    operation: str
    dtype: torch.dtype
    size: int
    whole: bool
    in_place: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    operation = draw(st.sampled_from(OPERATIONS))
    dtypes = (*INTEGERS, *FLOATS, *(MOVED_ONLY if operation == "all_gather" else ()))
    dtype = draw(st.sampled_from(dtypes))
    return Case(
        draw(st.sampled_from(list(RINGS))),
        operation,
        dtype,
        draw(st.sampled_from([0, 1, 2, CHUNK, 7, 13, 3 * CHUNK, 31, 97])),
        draw(st.booleans()) if dtype.is_floating_point else True,
        draw(st.booleans()),
        draw(st.integers(0, 1 << 20)),
    )


def drawn(count: int) -> list[Case]:
    """The same ones every time; in a nightly run those of its seed."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        derandomize=seed() is None,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


class OneOfEach(TracedStreams):
    """Lanes of one name are one lane: the more there are, the longer the detector takes."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._lanes: dict[str, Lane] = {}

    def new(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = super().new(name)
        return self._lanes[name]


def streams_of(device: Device | None) -> Streams:
    return NoStreams() if device is None else OneOfEach(device)


def two_works(ops: Sequence[dist.P2POp]) -> list[Any]:
    """What ``batch_isend_irecv`` does with a backend that does not make one work of them, on the simulated GPU.

    NCCL gives a batch to the one stream of its group, so hops of a group come one after the other though nobody waits
    for their arrival. A send or a receive by itself goes to a stream of its two ranks, which promises no such thing.
    """
    works: list[Any] = []
    for one in ops:
        there: Any = {"group_dst" if one.op is dist.isend else "group_src": one.group_peer}
        works.append(one.op(one.tensor, group=one.group, tag=one.tag, **there))
    return works


def topologies(shapes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Topology]:
    """Those that this rank is in, of ``shapes``: how many groups, of how many ranks. To be called by all ranks."""
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    me, found = dist.get_rank(), {}

    def group(ranks: range) -> Any:
        if tuple(ranks) not in made:
            made[tuple(ranks)] = dist.new_group(list(ranks))
        return made[tuple(ranks)]

    for groups, size in shapes:
        count = groups * size
        across = group(range(count))
        within = [group(range(first, first + size)) for first in range(0, count, size)]
        between = [group(range(first, count, size)) for first in range(size)]
        if me < count:
            found[groups, size] = Topology(me, count, size, across, within[me // size], between[me % size])
    return found


def given_by(rank: int, case: Case, numel: int) -> Tensor:
    """What a rank brings."""
    random = torch.Generator().manual_seed(case.seed * 64 + rank)
    if case.whole:
        return torch.randint(-8 if case.dtype.is_signed else 0, 8, (numel,), generator=random).to(case.dtype)
    return torch.randn(numel, generator=random, dtype=torch.float64).to(case.dtype)


def call(collectives: Collectives, case: Case, topology: Topology, place: torch.device) -> Tensor:
    """Gives what it is called for, with tensors that are in this place."""
    ranks, rank, size = topology.ranks, topology.rank, case.size
    if case.operation == "all_reduce":
        tensor = given_by(rank, case, size).to(place)
        collectives.all_reduce(tensor)
        return tensor
    if case.operation == "all_gather":
        whole = torch.empty(ranks * size, dtype=case.dtype, device=place)
        mine = given_by(rank, case, size).to(place)
        if case.in_place:
            mine = whole[rank * size : (rank + 1) * size].copy_(mine)
        collectives.all_gather(whole, mine)
        return whole
    whole = given_by(rank, case, ranks * size).to(place)
    block = whole[rank * size : (rank + 1) * size]
    output = block if case.in_place else torch.empty_like(block)
    collectives.reduce_scatter(output, whole)
    return output


def torchs(case: Case, topology: Topology, place: torch.device) -> Tensor | None:
    """What torch's own give; None where they do not know the dtype."""
    if case.dtype in MOVED_ONLY[1:]:
        return None
    return call(TorchCollectives(topology.across), case._replace(in_place=False), topology, place)


def wrong(case: Case, topology: Topology, got: Tensor, torch_got: Tensor | None) -> str:
    """What is wrong with what was got; "" where nothing is. It is there by now."""
    got, torch_got = got.cpu(), None if torch_got is None else torch_got.cpu()
    ranks, rank, size = topology.ranks, topology.rank, case.size
    numel = size if case.operation != "reduce_scatter" else ranks * size
    brought = torch.stack([given_by(one, case, numel) for one in range(ranks)])
    if case.operation == "reduce_scatter":
        brought = brought[:, rank * size : (rank + 1) * size]
    if case.operation == "all_gather":
        expected = brought.flatten()
    elif case.whole:
        expected = brought.sum(0).to(case.dtype)
    else:
        eps = torch.finfo(case.dtype).eps
        for value, parts in zip(got.tolist(), brought.T.tolist(), strict=True):
            bound = (ranks - 1) * eps * math.fsum(map(abs, parts))
            if not abs(value - math.fsum(parts)) <= bound:
                return f"{case}: {value} is further from the sum of {parts} than {bound}"
        return ""
    if got.dtype is not expected.dtype or not torch.equal(got, expected):
        return f"{case}: {got.tolist()}, not {expected.tolist()}"
    if torch_got is not None and not torch.equal(got, torch_got):
        return f"{case}: {got.tolist()}, and torch's {torch_got.tolist()}"
    return ""
