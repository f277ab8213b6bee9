"""Collectives give the values of plain gloo, and order what NCCL's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from detectors import find_races
from repro.accelerator.device import Device
from repro.cluster import Rank
from repro.trace import Collective, HostWait, TraceReader, file_of
from tests.accelerator.programs import bits
from tests.accelerator.world import is_poison, together


def mine(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)  # the generator's seed is the rank


def all_reduce(me: Rank) -> Any:
    many = [mine(33), mine(4).to(torch.bfloat16), torch.arange(5) * me.rank]
    for tensor in many:
        dist.all_reduce(tensor)
    dist.all_reduce(many[0], op=dist.ReduceOp.MAX)
    part = mine(4, 4)
    dist.all_reduce(part[1])
    return [*many, part]


def all_gather(me: Rank) -> Any:
    out = [torch.zeros(5) for _ in range(me.world)]
    dist.all_gather(out, mine(5))
    flat = torch.zeros(me.world * 3)
    dist.all_gather_into_tensor(flat, mine(3))
    whole = torch.zeros(me.world * 3)
    dist.all_gather_into_tensor(whole, whole.narrow(0, 3 * me.rank, 3).copy_(mine(3)))
    return [*out, flat, whole]


def reduce_scatter(me: Rank) -> Any:
    one, two = torch.zeros(3), torch.zeros(3)
    dist.reduce_scatter_tensor(one, mine(3 * me.world))
    dist.reduce_scatter(two, [mine(3) for _ in range(me.world)])
    return [one, two]


def rooted(me: Rank) -> Any:
    last, rank = me.world - 1, me.rank
    sent, reduced, got = mine(4), mine(4), torch.zeros(3)
    dist.broadcast(sent, src=last)
    dist.reduce(reduced, dst=last)
    gathered = [torch.zeros(2) for _ in range(me.world)] if rank == last else None
    dist.gather(mine(2), gathered, dst=last)
    dist.scatter(got, [mine(3) for _ in range(me.world)] if rank == last else None, src=last)
    return [sent, reduced if rank == last else 0, gathered, got]


def all_to_all(me: Rank) -> Any:
    out = torch.zeros(2 * me.world)
    dist.all_to_all_single(out, mine(2 * me.world))
    sizes = [1 + (me.rank + other) % 3 for other in range(me.world)]
    uneven = torch.zeros(sum(sizes))
    dist.all_to_all_single(uneven, mine(sum(sizes)), sizes, sizes)
    return [out, uneven]


def point_to_point(me: Rank) -> Any:
    """A ring: everybody sends first and receives later."""
    got = torch.zeros(4)
    sending = dist.isend(mine(4) * 2, (me.rank + 1) % me.world)
    receiving = dist.irecv(got, (me.rank - 1) % me.world)
    assert sending is not None
    assert receiving is not None
    sending.wait()
    receiving.wait()
    if me.rank == 0:
        dist.send(got, 1)
    elif me.rank == 1:
        dist.recv(got, 0)
    return got


def objects_and_barriers(me: Rank) -> Any:
    everything: list[Any] = [None] * me.world
    dist.all_gather_object(everything, {"rank": me.rank, "list": [1, 2]})
    dist.barrier()
    told = [f"from {me.rank}"]
    dist.broadcast_object_list(told, src=1)
    return [everything, told]


def subgroups(me: Rank) -> Any:
    """Two groups of which every rank has one each, used in turns with the world."""
    half = [dist.new_group([first, first + 1]) for first in range(0, me.world, 2)][me.rank // 2]
    every_second = [dist.new_group(list(range(first, me.world, 2))) for first in range(2)][me.rank % 2]
    a, b, c = mine(5), mine(5), mine(5)
    for _ in range(3):
        works = [dist.all_reduce(c, async_op=True), dist.all_reduce(a, group=half, async_op=True)]
        works.append(dist.all_reduce(b, group=every_second, async_op=True))
        for work in works:
            assert work is not None
            work.wait()
        b = b + a
    return [a, b, c]


PROGRAMS: list[Callable[[Rank], Any]] = [
    all_reduce, all_gather, reduce_scatter, rooted, all_to_all, point_to_point, objects_and_barriers, subgroups,
]  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
def test_the_values_of_plain_gloo(world: int, tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        results = [one(me) for one in PROGRAMS]
        if device is not None:
            device.synchronize()
            with device.quiet():
                return repr(bits(results))
        return repr(bits(results))

    plain = together(world, program, tmp_path / "plain", simulated=False)
    assert together(world, program, tmp_path / "even") == plain
    slow = {"rank:1": 50.0, "link:nccl 0,1": 30.0, "host:0": 4.0}
    assert together(world, program, tmp_path / "slow", slow=slow, jitter=3.0) == plain
    assert [str(race) for race in find_races(tmp_path / "slow" / "trace")] == []


def test_a_wait_that_is_forgotten(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        out = torch.empty(1 << 12)
        kept = dist.all_gather_into_tensor(out, torch.ones((1 << 12) // me.world), async_op=True)
        poisoned = is_poison((out * 2)[:8])
        del kept
        return poisoned

    assert together(2, program, tmp_path, slow={"link:*": 50.0}) == [True, True]
    races = find_races(tmp_path / "trace")
    assert {(race.kind, race.first.kernel, race.second.kernel) for race in races} == {
        ("write-read", "nccl::all_gather", "aten::mul")
    }
    assert races[0].ranks == (0, 1)
    assert races[0].shown == 2


def test_a_wait_orders_the_current_stream_and_costs_the_host_nothing(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        out = torch.empty(1 << 12)
        work = dist.all_gather_into_tensor(out, torch.ones((1 << 12) // me.world), async_op=True)
        assert work is not None
        before = device.timeline.now
        assert work.wait()
        work.wait()  # again, as some programs do
        assert device.timeline.now == before
        assert device.host_blocked == 0
        return (out * 2)[:2].tolist()

    assert together(2, program, tmp_path, slow={"link:*": 50.0}) == [[2, 2], [2, 2]]
    assert find_races(tmp_path / "trace") == []


def test_waiting_on_one_stream_orders_no_other(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        side = type(device.current_stream())(device)
        out = torch.empty(64)
        work = dist.all_gather_into_tensor(out, torch.ones(64 // me.world), async_op=True)
        assert work is not None
        with device.stream(side):
            work.wait()
        return is_poison(out * 2)

    assert together(2, program, tmp_path, slow={"link:*": 50.0}) == [True, True]
    races = {(race.kind, race.second.kernel) for race in find_races(tmp_path / "trace")}
    assert ("write-read", "aten::mul") in races


def test_a_barrier_blocks_the_host(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        if me.rank == 1:
            torch.ones(4)
        dist.barrier()
        return device.timeline.now

    times = together(2, program, tmp_path, slow={"rank:1": 1000.0})
    assert min(times) > 1_000_000
    for rank in range(2):
        records = list(TraceReader(file_of(tmp_path / "trace", rank)).read())
        assert [record.how for record in records if isinstance(record, HostWait)] == ["synchronize"]


@pytest.mark.parametrize("slow", ["rank:1", "host:1"])
def test_a_collective_starts_when_the_last_rank_arrives(slow: str, tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        a = torch.ones(4)
        for _ in range(3):
            a = a + 1
        dist.all_reduce(a)
        return a.tolist()

    assert together(3, program, tmp_path, slow={slow: 50.0}) == [[12.0] * 4] * 3
    met = []
    for rank in range(3):
        records = TraceReader(file_of(tmp_path / "trace", rank)).read()
        met += [record for record in records if isinstance(record, Collective)]
    assert len({(one.start, one.end) for one in met}) == 1
    assert met[1].start == max(one.issued for one in met) if slow == "host:1" else met[1].start > 4 * 50 * 2000
    assert met[1].start > met[0].issued


def test_all_ranks_agree_on_the_ends_of_rooted_collectives(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        return bool(rooted(me))

    together(3, program, tmp_path)
    traces = [TraceReader(file_of(tmp_path / "trace", rank)).read() for rank in range(3)]
    ends = [[(one.kernel, one.start, one.end) for one in trace if isinstance(one, Collective)] for trace in traces]
    assert ends[0] == ends[1] == ends[2]
    assert len(ends[0]) == 4
