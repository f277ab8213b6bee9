"""Collectives on the device give the values of plain gloo, and order what NCCL's order."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from world import pairs, races, together

from streamrace.device.ranks import RankFailed, processes
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, HostWait

SLOW = {"kernel:nccl::*": 50.0}


def mine(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(device)  # the generator's seed is the rank


def all_reduce(rank: int, world: int, device: str) -> Any:
    many = [mine(device, 33), mine(device, 4).to(torch.bfloat16), mine(device, 4).half()]
    many.append(torch.arange(5).to(device) * rank)
    for tensor in many:
        dist.all_reduce(tensor)
    dist.all_reduce(many[0], op=dist.ReduceOp.MAX)
    part = mine(device, 4, 4)
    dist.all_reduce(part[1])
    return [*many, part]


def all_gather(rank: int, world: int, device: str) -> Any:
    out = [torch.zeros(5, device=device) for _ in range(world)]
    dist.all_gather(out, mine(device, 5))
    flat = torch.zeros(world * 3, device=device)
    dist.all_gather_into_tensor(flat, mine(device, 3))
    whole = torch.zeros(world * 3, device=device)
    dist.all_gather_into_tensor(whole, whole.narrow(0, 3 * rank, 3).copy_(mine(device, 3)))
    return [*out, flat, whole]


def reduce_scatter(rank: int, world: int, device: str) -> Any:
    one, two = torch.zeros(3, device=device), torch.zeros(3, device=device)
    dist.reduce_scatter_tensor(one, mine(device, 3 * world))
    dist.reduce_scatter(two, [mine(device, 3).round() for _ in range(world)])  # gloo sums a list in another order
    return [one, two]


def rooted(rank: int, world: int, device: str) -> Any:
    last = world - 1
    sent, reduced, got = mine(device, 4), mine(device, 4), torch.zeros(3, device=device)
    dist.broadcast(sent, src=last)
    dist.reduce(reduced, dst=last)
    gathered = [torch.zeros(2, device=device) for _ in range(world)] if rank == last else None
    dist.gather(mine(device, 2), gathered, dst=last)
    dist.scatter(got, [mine(device, 3) for _ in range(world)] if rank == last else None, src=last)
    return [sent, *([reduced] if rank == last else []), *(gathered or []), got]


def all_to_all(rank: int, world: int, device: str) -> Any:
    out = torch.zeros(2 * world, device=device)
    dist.all_to_all_single(out, mine(device, 2 * world))
    sizes = [1 + (rank + other) % 3 for other in range(world)]
    uneven = torch.zeros(sum(sizes), 2, device=device)
    dist.all_to_all_single(uneven, mine(device, sum(sizes), 2), sizes, sizes)
    return [out, uneven]


def point_to_point(rank: int, world: int, device: str) -> Any:
    """A ring: everybody sends first and receives later."""
    got = torch.zeros(4, device=device)
    sending = dist.isend(mine(device, 4) * 2, (rank + 1) % world)
    receiving = dist.irecv(got, (rank - 1) % world)
    assert sending is not None and receiving is not None
    sending.wait()
    receiving.wait()
    if rank == 0:
        dist.send(got, 1)
    elif rank == 1:
        dist.recv(got, 0)
    batched = torch.zeros(4, device=device)
    there, back = (rank + 1) % world, (rank - 1) % world
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, got + 1, there), dist.P2POp(dist.irecv, batched, back)]):
        work.wait()
    return [got, batched]


def objects_and_barriers(rank: int, world: int, device: str) -> Any:
    everything: list[Any] = [None] * world
    dist.all_gather_object(everything, {"rank": rank, "list": [1, 2]})
    dist.barrier()
    told = [f"from {rank}"]
    dist.broadcast_object_list(told, src=1)
    return [everything, told]


def subgroups(rank: int, world: int, device: str) -> Any:
    """Two groups of which every rank has one each, used in turns with the world."""
    half = [dist.new_group([first, first + 1]) for first in range(0, world, 2)][rank // 2]
    every_second = [dist.new_group(list(range(first, world, 2))) for first in range(2)][rank % 2]
    a, b, c = mine(device, 5), mine(device, 5), mine(device, 5)
    for _ in range(3):
        works = [dist.all_reduce(c, async_op=True), dist.all_reduce(a, group=half, async_op=True)]
        works.append(dist.all_reduce(b, group=every_second, async_op=True))
        for work in works:
            assert work is not None
            work.wait()
        b = b + a
    return [a, b, c]


def coalesced(rank: int, world: int, device: str) -> Any:
    tensors = [mine(device, 3).round(), mine(device, 5).round()]  # gloo sums them as one, in another order
    with dist._coalescing_manager(async_ops=True) as together:
        for tensor in tensors:
            dist.all_reduce(tensor)
    together.wait()
    return tensors


def functional(rank: int, world: int, device: str) -> Any:
    import torch.distributed._functional_collectives as funcol

    given, group = mine(device, 4), dist.group.WORLD
    return [
        funcol.all_reduce(given, "sum", group) + 1,
        funcol.all_gather_tensor(given, 0, group) * 2,
        funcol.reduce_scatter_tensor(mine(device, 4 * world), "sum", 0, group) + 0,
        funcol.all_to_all_single(mine(device, 2 * world), None, None, group) + 0,
    ]


PROGRAMS: list[Callable[[int, int, str], Any]] = [
    all_reduce, all_gather, reduce_scatter, rooted, all_to_all, point_to_point, objects_and_barriers, subgroups,
    coalesced, functional,
]  # fmt: skip


def plain(results: Any) -> Any:
    return [one.float().tolist() if isinstance(one, torch.Tensor) else one for one in results]


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.wide), 4])
def test_the_values_of_plain_gloo(world: int, tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        return {one.__name__: plain(one(rank, world, device)) for one in PROGRAMS}

    expected = together(world, program, tmp_path / "plain", device="cpu")
    even = together(world, program, tmp_path / "even")
    assert [name for name in expected[0] if even[0][name] != expected[0][name]] == []
    assert even == expected
    slow = {"kernel:nccl::*": 30.0, "stream:0": 20.0}
    assert together(world, program, tmp_path / "slow", slow=slow) == expected
    assert races(tmp_path / "slow") == []


def test_a_group_may_have_gloo_for_the_host_beside_nccl(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        there, here = torch.ones(3, device=device) * rank, torch.ones(3) * rank
        work = dist.all_reduce(there, async_op=True)
        dist.all_reduce(here)
        assert work is not None
        work.wait()
        return [dist.get_backend(), dist.is_nccl_available(), there.tolist(), here.tolist()]

    (one, _) = together(2, program, tmp_path, backend="cpu:gloo,cuda:nccl")
    assert one[1:] == [True, [1.0] * 3, [1.0] * 3]


def gather_late(out: torch.Tensor, world: int) -> dist.Work:
    work = dist.all_gather_into_tensor(out, torch.ones(out.numel() // world, device="cuda"), async_op=True)
    assert work is not None
    return work


def test_a_wait_that_is_forgotten(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        out = torch.zeros(1 << 12, device=device)
        kept = gather_late(out, world)
        early = (out * 2)[:3].tolist()
        kept.wait()
        return early

    assert together(2, program, tmp_path, slow=SLOW) == [[0.0] * 3] * 2
    found = races(tmp_path)
    assert {(race.kind, race.first.kernel, race.second.kernel) for race in found} == {
        ("write-read", "nccl::all_gather", "aten::mul")
    }
    assert found[0].ranks == (0, 1)
    assert found[0].second.stack[0].file.endswith("test_nccl.py")


def test_a_wait_orders_the_current_stream_and_costs_the_host_nothing(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        out = torch.zeros(1 << 12, device=device)
        work = gather_late(out, world)
        assert work.wait()
        work.wait()  # again, as some programs do
        assert not torch.cuda.current_stream().query()
        return (out * 2)[:2].tolist()

    assert together(2, program, tmp_path, slow=SLOW) == [[2, 2], [2, 2]]
    assert races(tmp_path) == []


def test_waiting_on_one_stream_orders_no_other(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        out = torch.zeros(64, device=device)
        work = gather_late(out, world)
        with torch.cuda.stream(torch.cuda.Stream()):
            work.wait()
        return (out * 2)[:2].tolist()

    assert together(2, program, tmp_path, slow=SLOW) == [[0, 0], [0, 0]]
    assert ("nccl::all_gather", "aten::mul") in pairs(tmp_path)


def test_a_wait_for_coalesced_collectives_is_for_all_of_them(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        several = [torch.ones(1 << (4 * size), device=device) for size in (1, 2, 3)]
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            dist.all_reduce_coalesced(several, async_op=True).wait()
        return [one.sum().item() for one in several]

    assert together(2, program, tmp_path, slow=SLOW) == [[2 << 4, 2 << 8, 2 << 12]] * 2
    assert races(tmp_path) == []


def test_a_collective_holds_its_input_until_somebody_waits(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        part, out = torch.ones(1 << 12, device=device), torch.zeros(world << 12, device=device)
        place = part.data_ptr()
        work = dist.all_gather_into_tensor(out, part, async_op=True)
        del part
        before = [torch.empty(1 << 12, device=device) for _ in range(3)]
        assert work is not None
        work.wait()
        after = [torch.empty(1 << 12, device=device) for _ in range(3)]
        return [place in [one.data_ptr() for one in those] for those in (before, after)]

    assert together(2, program, tmp_path, slow=SLOW) == [[False, True]] * 2
    assert races(tmp_path) == []


def test_coalesced_collectives_hold_each_ones_input_until_somebody_waits(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        parts = [torch.ones(1 << 12, device=device) for _ in range(2)]
        outs = [torch.zeros(world << 12, device=device) for _ in parts]
        places = {one.data_ptr() for one in parts}
        with dist._coalescing_manager(async_ops=True) as together:
            for out, part in zip(outs, parts, strict=True):
                dist.all_gather_into_tensor(out, part)
        del part, parts
        torch.cuda.synchronize()  # the collectives are done, and still nobody has waited for them
        before = [torch.empty(1 << 12, device=device) for _ in range(4)]
        together.wait()
        after = [torch.empty(1 << 12, device=device) for _ in range(4)]
        return [len(places & {one.data_ptr() for one in those}) for those in (before, after)]

    assert together(2, program, tmp_path, slow=SLOW) == [[0, 2]] * 2


def test_a_collective_that_is_dropped_keeps_its_input_until_it_is_done(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        part, out = torch.ones(1 << 12, device=device), torch.zeros(world << 12, device=device)
        place = part.data_ptr()
        dist.all_gather_into_tensor(out, part, async_op=True)
        del part
        before = [torch.zeros(1 << 12, device=device) for _ in range(3)]
        torch.cuda.synchronize()
        after = [torch.empty(1 << 12, device=device) for _ in range(3)]
        return [place in [one.data_ptr() for one in those] for those in (before, after)], out.sum().item()

    assert together(2, program, tmp_path, slow=SLOW) == [([False, True], 2 << 12)] * 2
    assert races(tmp_path) == []


def test_without_async_op_a_collective_runs_on_the_current_stream(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        side, a, b = torch.cuda.Stream(), torch.ones(4, device=device), torch.ones(4, device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(a)
        dist.all_reduce(b)
        return side.stream_id, a.tolist()  # nothing waits for the side stream

    ((side, _), _) = together(2, program, tmp_path, slow=SLOW)
    records = list(TraceReader(file_of(tmp_path, 0)).read())
    assert [record.stream for record in records if isinstance(record, Collective)] == [side, 0]
    assert ("nccl::all_reduce", "cudaMemcpyAsync DtoH") in pairs(tmp_path)


def test_a_groups_collectives_run_one_after_the_other_on_whatever_streams(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        side, a, b = torch.cuda.Stream(), torch.ones(1 << 12, device=device), torch.ones(1 << 12, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            dist.all_reduce(a)
        dist.all_reduce(b)
        torch.cuda.synchronize()

    together(2, program, tmp_path, slow=SLOW)
    records = TraceReader(file_of(tmp_path, 0)).read()
    first, second = (record for record in records if isinstance(record, Collective))
    assert first.stream != second.stream and first.start < first.end <= second.start


def test_a_barrier_blocks_the_host(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        dist.barrier()
        return None

    together(2, program, tmp_path, slow=SLOW)
    for rank in range(2):
        records = list(TraceReader(file_of(tmp_path, rank)).read())
        assert [record.how for record in records if isinstance(record, HostWait)] == ["synchronize"]


def test_a_collective_starts_when_the_last_rank_arrives(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        a = torch.ones(8, device=device)
        for _ in range(100 * rank):
            a = a + 1
        dist.all_reduce(a)
        return a[0].item()

    assert together(2, program, tmp_path) == [102.0, 102.0]
    starts = {
        record.start
        for rank in range(2)
        for record in TraceReader(file_of(tmp_path, rank)).read()
        if isinstance(record, Collective)
    }
    assert len(starts) == 1
    assert min(starts) > 100 * 5000


def test_what_nccl_refuses_is_refused_with_its_words(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        a = torch.ones(4, dtype=torch.int32, device=device)
        with pytest.raises(ValueError, match="Cannot use ReduceOp.BAND with NCCL"):
            dist.all_reduce(a, op=dist.ReduceOp.BAND)
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            dist.all_reduce(torch.ones(4, 4, device=device).t()[1:])
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(4))
        average = torch.tensor([1.0, 3.0], device=device) * (rank + 1)
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        return average.tolist()

    assert together(2, program, tmp_path) == [[1.5, 4.5]] * 2


def test_two_ranks_on_one_gpu_are_refused_as_nccl_does(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> None:
        torch.cuda.set_device(0)
        try:
            dist.all_reduce(torch.ones(4, device="cuda"))
        except RuntimeError as refusal:
            (tmp_path / "refusal").write_text(str(refusal))
            raise

    with pytest.raises(RankFailed):
        together(2, program, tmp_path)
    assert "both use cuda:0, and NCCL refuses two ranks on one GPU" in (tmp_path / "refusal").read_text()


def test_ctrl_c_reaches_the_ranks(tmp_path: Path) -> None:
    """It waits while they are forked, in the process that forks alone."""

    def interrupted(rank: int) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            (tmp_path / f"rank{rank}").write_text("interrupted")

    processes.run(range(2), interrupted)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("rank0", "rank1"), "interrupted"
    )
