"""Collectives issued as one group, and collectives that a mode or a wrapper of tensors looks at."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor.debug import CommDebugMode
from world import pairs, races, together

from streamrace.device import nccl

SLOW = {"kernel:nccl::*": 50.0}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def mine(device: str, size: int) -> torch.Tensor:
    return torch.randn(size).to(device)  # the generator's seed is the rank


def of(device: str) -> torch.device | None:
    """torch's managers are told a device where the backend groups the calls itself, as NCCL does and gloo does not."""
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else None


def several_of_a_kind(rank: int, world: int, device: str) -> list[torch.Tensor]:
    inputs, outputs = (
        [mine(device, size) for size in (3, 5)],
        [torch.zeros(size * world, device=device) for size in (3, 5)],
    )
    with _coalescing_manager(device=of(device), async_ops=True) as together:
        for output, given in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, given)
    together.wait()
    scattered = [torch.zeros(2, device=device) for _ in range(2)]
    wholes = [mine(device, 2 * world).round() for _ in scattered]
    with _coalescing_manager(device=of(device)):
        for output, given in zip(scattered, wholes, strict=True):
            dist.reduce_scatter_tensor(output, given)
    return [*outputs, *scattered]


def several_kinds(rank: int, world: int, device: str) -> list[torch.Tensor]:
    """NCCL takes them as one group; gloo is given them one after the other."""
    first, second, got = mine(device, 4), mine(device, 4), torch.zeros(4, device=device)
    group, to, source = dist.group.WORLD, (rank + 1) % world, (rank - 1) % world
    if device == "cuda":
        group._start_coalescing(of(device))
    sending = dist.isend(second, to)
    receiving = dist.irecv(got, source)
    works = [dist.broadcast(first, 1, async_op=True), sending, receiving]
    if device == "cuda":
        works = [group._end_coalescing(of(device))]
    for work in works:
        work.wait()
    return [first, got]


@pytest.mark.parametrize("program", [several_of_a_kind, several_kinds])
def test_a_group_of_collectives_gives_what_they_give_one_by_one(program: Any, tmp_path: Path) -> None:
    def told(rank: int, world: int, device: str) -> Any:
        return [one.tolist() for one in program(rank, world, device)]

    expected = together(2, told, tmp_path / "plain", device="cpu")
    assert together(2, told, tmp_path / "grouped") == expected
    assert together(2, told, tmp_path / "slow", slow=SLOW) == expected
    assert races(tmp_path / "slow") == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_group_is_waited_for_through_its_manager_alone(waits: bool, tmp_path: Path) -> None:
    """DeepSpeed's MiCS keeps the handle of a collective within, whose wait is none (#5080)."""

    def program(rank: int, world: int, device: str) -> Any:
        given, whole = torch.ones(1 << 10, device=device), torch.zeros(world << 10, device=device)
        with _coalescing_manager(device=of(device), async_ops=True) as together:
            dist.all_gather_into_tensor(whole, given, async_op=True)
        if waits:
            together.wait()
        return (whole * 2)[:2].tolist()

    assert together(2, program, tmp_path, slow=SLOW) == [[2.0, 2.0] if waits else [0.0, 0.0]] * 2
    assert pairs(tmp_path) == (set() if waits else {("nccl::all_gather", "aten::mul")})


def test_two_collectives_of_a_group_on_the_same_memory_are_refused(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        value = mine(device, 4)
        with _coalescing_manager(device=of(device), async_ops=True):
            dist.broadcast(value, 0, async_op=True)
            with pytest.raises(RuntimeError, match="NCCL does not order them; issue them one after the other"):
                dist.broadcast(value[2:], 1, async_op=True)

    together(2, program, tmp_path)


def looked_at(rank: int, world: int, device: str) -> Any:
    value, whole = mine(device, 4).round(), torch.zeros(4 * world, device=device)
    with CommDebugMode() as mode:
        dist.all_reduce(value)
        dist.all_gather_into_tensor(whole, value)
        dist.broadcast(value, 0)
        work = dist.all_reduce(value, op=dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        work.wait()
        total = functional.all_reduce(value, "sum", dist.group.WORLD) + 1
        dist.barrier()
    counted = {str(operator): count for operator, count in mode.get_comm_counts().items()}
    return [counted, value.tolist(), whole.tolist(), total.tolist()]


def wrapped(rank: int, world: int, device: str) -> Any:
    gathered = functional.all_gather_tensor(mine(device, 4), 0, dist.group.WORLD)
    assert isinstance(gathered, functional.AsyncCollectiveTensor)
    dist.all_reduce(gathered)  # nobody has waited yet
    given, output = mine(device, 4), torch.zeros(4 * world, device=device)
    name = dist.group.WORLD.group_name
    made = torch.ops._c10d_functional.all_gather_into_tensor_out(given, world, name, out=output)
    return [gathered.tolist(), torch.ops._c10d_functional.wait_tensor(made).tolist()]


@pytest.mark.parametrize("program", [looked_at, wrapped])
def test_a_mode_and_a_wrapper_of_tensors_see_what_they_see_with_gloo(program: Any, tmp_path: Path) -> None:
    def told(rank: int, world: int, device: str) -> Any:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return program(rank, world, device)

    expected = together(2, told, tmp_path / "plain", device="cpu")
    assert together(2, told, tmp_path / "device") == expected
    assert together(2, told, tmp_path / "slow", slow=SLOW) == expected
    assert races(tmp_path / "slow") == []


def test_a_list_on_one_rank_and_a_tensor_on_the_other_are_the_same_collective(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        parts, summed = list(mine(device, 8).view(2, 4)), torch.zeros(4, device=device)
        gathered = torch.zeros(2, 4, device=device)
        if rank:
            dist.reduce_scatter(summed, parts)
            dist.all_gather(list(gathered), summed)
        else:
            dist.reduce_scatter_tensor(summed, torch.cat(parts))
            dist.all_gather_into_tensor(gathered.view(-1), summed)
        return gathered.tolist()

    one, other = together(2, program, tmp_path)
    torch.manual_seed(0)
    first = torch.randn(8)
    torch.manual_seed(1)
    assert one == other == (first + torch.randn(8)).view(2, 4).tolist()


def test_parts_of_different_sizes_are_refused_by_name(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        with pytest.raises(
            RuntimeError, match="an all_gather of parts of different sizes cannot be simulated: broadcast each"
        ):
            dist.all_gather([torch.zeros(2 + part, device=device) for part in range(2)], mine(device, 2 + rank))

    together(2, program, tmp_path)


def test_a_rank_that_ends_at_once_lets_the_others_connect_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = nccl._gloo

    def slowly(store: dist.Store, rank: int, size: int, options: Any) -> Any:
        group = connect(store, rank, size, options)
        if rank == 1:
            for _ in range(20_000):
                os.sched_yield()
            (tmp_path / "connected").touch()
        return group

    monkeypatch.setattr(nccl, "_gloo", slowly)
    assert together(2, lambda *_: (tmp_path / "connected").exists(), tmp_path) == [True, True]
