"""Ranks wait for each other only where they must: nobody waits in a circle, and nothing depends on the machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from world import races, together

from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, End

SLOW = {"stream:0": 20.0}
Program = Callable[[int, int], Any]


def full(value: float, numel: int = 4) -> torch.Tensor:
    return torch.full((numel,), float(value), device="cuda")


def reduced(tensor: torch.Tensor, **how: Any) -> Any:
    return dist.all_reduce(tensor, async_op=True, **how)


def block() -> None:
    """The host waits for its compute stream, far beyond what it issued last."""
    full(1, 64).sum().item()


def only_one_reads_while_the_others_issue_on(rank: int, world: int) -> Any:
    total, seen = full(1), []
    for step in range(20):
        dist.all_reduce(total)
        if step % world == rank or rank == 0:
            seen.append(total[0].item())
        total = total / world
    return [seen[-1], total.sum().item()]


def a_ring_that_sends_then_blocks_then_receives(rank: int, world: int) -> Any:
    """No rank arrives where its neighbour waits before its own host goes on: each must promise its time."""
    got = full(0)
    for _ in range(3):
        sending = dist.isend(full(rank), (rank + 1) % world)
        block()
        receiving = dist.irecv(got, (rank - 1) % world)
        assert sending is not None and receiving is not None
        sending.wait()
        receiving.wait()
    return got[0].item()


def two_groups_used_in_crossed_orders(rank: int, world: int) -> Any:
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    tensors = {id(group): full(1) for group in groups}
    works = []
    for group in groups if rank == 0 else groups[::-1]:
        works.append(reduced(tensors[id(group)], group=group))
        block()
    for work in works:
        work.wait()
    return [tensors[id(group)].sum().item() for group in groups]


def a_chain_of_groups_where_each_waits_for_the_one_before(rank: int, world: int) -> Any:
    """Its streams wait, not its program, which races: what it computes says nothing."""
    pairs = [dist.new_group([first, (first + 1) % world]) for first in range(world)]
    a = full(1)
    for _ in range(3):
        for first in ((rank - 1) % world, rank):
            reduced(a, group=pairs[first])
            a = a * 0.5
        block()
    return len(pairs)


def a_rank_that_asks_in_a_loop(rank: int, world: int) -> Any:
    a, asked = full(1), 0
    work = reduced(a)
    if rank == 0:
        while not work.is_completed():
            asked += 1
    else:
        for _ in range(10):
            full(1)
        work.wait()
    return [rank > 0 or asked > 5, a.sum().item()]


def rooted(rank: int, world: int) -> Any:
    sent, got = full(rank), full(0)
    dist.broadcast(sent, src=world - 1)
    dist.reduce(got, dst=world - 1)
    return sent[0].item()


EXPECTED: dict[Program, list[Any]] = {
    only_one_reads_while_the_others_issue_on: [[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]],
    a_ring_that_sends_then_blocks_then_receives: [2.0, 0.0, 1.0],
    two_groups_used_in_crossed_orders: [[12.0, 12.0]] * 3,
    a_chain_of_groups_where_each_waits_for_the_one_before: [3] * 3,
    a_rank_that_asks_in_a_loop: [[True, 12.0]] * 3,
    rooted: [2.0] * 3,
}


def test_nobody_waits_in_a_circle(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        return [one(rank, world) for one in EXPECTED]

    expected = [list(row) for row in zip(*EXPECTED.values(), strict=True)]
    assert together(3, program, tmp_path / "even") == expected
    assert together(3, program, tmp_path / "slow", slow=SLOW) == expected
    racing = {one.second.stack[0].function for one in races(tmp_path / "slow")}
    assert racing == {a_chain_of_groups_where_each_waits_for_the_one_before.__name__}


def test_all_ranks_agree_on_the_ends_of_rooted_collectives(tmp_path: Path) -> None:
    together(3, lambda rank, world, device: rooted(rank, world), tmp_path)
    traces = [TraceReader(file_of(tmp_path, rank)).read() for rank in range(3)]
    ends = [[(one.kernel, one.start, one.end) for one in trace if isinstance(one, Collective)] for trace in traces]
    assert ends[0] == ends[1] == ends[2]
    assert [kernel for kernel, _, _ in ends[0]] == ["nccl::broadcast", "nccl::reduce"]


def test_the_same_program_writes_the_same_bytes_whatever_the_machine_does(tmp_path: Path) -> None:
    def run(folder: Path, lazy: int) -> list[bytes]:
        def program(rank: int, world: int, device: str) -> int:
            groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
            side, a = torch.cuda.Stream(), torch.randn(64).cuda()
            for step in range(12):
                if rank == lazy:
                    sum(range(200_000))  # real time passes, no virtual time does
                works = [reduced(a)]
                works += [reduced(a.clone(), group=one) for one in groups if rank in dist.get_process_group_ranks(one)]
                if step % 3 == rank:
                    a.sum().item()
                if step % 4 == 1:
                    side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    b = a * 2
                while step == 5 and not works[0].is_completed():
                    pass
                if step % 2:
                    works[0].wait()
                if step == 8:
                    torch.cuda.synchronize()
                a = a / world + b
            return 0

        together(3, program, folder, slow={"stream:0": 9.0})
        return [file_of(folder, rank).read_bytes() for rank in range(3)]

    first, second = (run(tmp_path / str(lazy), lazy) for lazy in (0, 2))
    assert first == second
    assert any(isinstance(one, End) for one in TraceReader(file_of(tmp_path / "0", 0)).read())


def test_a_full_pipe_stops_nobody() -> None:
    """Two ranks that write to each other more than a pipe holds, before either reads."""
    from streamrace.device.ranks import exchange

    arrived: dict[int, int] = {}
    exchange.arrived = lambda group, number, sender, value: arrived.update({sender: arrived.get(sender, 0) + 1})
    store, count = dist.HashStore(), 10_000
    ranks = [exchange.PipeExchange(rank) for rank in range(2)]
    linking = threading.Thread(target=ranks[1].link, args=(store, [0, 1]), daemon=True)
    linking.start()
    ranks[0].link(store, [0, 1])
    linking.join()

    def talk(rank: int) -> None:
        for number in range(count):
            ranks[rank].post(1, number, (0, 1), 5 * number)
        while arrived.get(1 - rank, 0) < count:
            ranks[rank].receive(None)

    other = threading.Thread(target=talk, args=(1,), daemon=True)
    other.start()
    talk(0)
    other.join()
    assert arrived == {0: count, 1: count}
    assert os.path.exists(ranks[0]._path)
