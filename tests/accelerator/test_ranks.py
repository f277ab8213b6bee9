"""Ranks wait for each other only where they must: nobody waits in a circle, and nothing depends on the machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from repro.accelerator.device import Device
from repro.accelerator.exchange import Links, PipeExchange
from repro.cluster import Rank
from repro.trace import End, TraceReader, file_of
from tests.accelerator.world import together


def reduced(tensor: torch.Tensor, **how: Any) -> Any:
    return dist.all_reduce(tensor, async_op=True, **how)


def test_only_one_rank_reads_while_the_others_issue_on(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        total, seen = torch.ones(4), []
        for step in range(20):
            dist.all_reduce(total)
            if step % me.world == me.rank or me.rank == 0:
                seen.append(total[0].item())
            total = total / me.world
        return [seen[-1], total.sum().item()]

    assert [last for _, last in together(3, program, tmp_path)] == [4.0, 4.0, 4.0]


def test_a_ring_that_sends_then_blocks_then_receives(tmp_path: Path) -> None:
    """No rank arrives where its neighbour waits before its own host goes on: each must promise its time."""

    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        got = torch.zeros(4)
        for _ in range(3):
            sending = dist.isend(torch.full((4,), float(me.rank)), (me.rank + 1) % me.world)
            torch.ones(64).sum().item()  # the host waits for its compute stream, far beyond the send's arrival
            receiving = dist.irecv(got, (me.rank - 1) % me.world)
            assert sending is not None
            assert receiving is not None
            sending.wait()
            receiving.wait()
        return got[0].item()

    assert together(3, program, tmp_path) == [2.0, 0.0, 1.0]
    assert together(3, program, tmp_path / "slow", slow={"rank:1": 100.0}) == [2.0, 0.0, 1.0]


def test_two_groups_used_in_crossed_orders(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        order = groups if me.rank == 0 else groups[::-1]
        tensors = {id(group): torch.ones(4) for group in groups}
        works = []
        for group in order:
            works.append(reduced(tensors[id(group)], group=group))
            torch.ones(64).sum().item()
        for work in works:
            work.wait()
        return [tensors[id(group)].sum().item() for group in groups]

    assert together(2, program, tmp_path) == [[8.0, 8.0], [8.0, 8.0]]


def test_a_chain_of_groups_where_each_waits_for_the_one_before(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        pairs = [dist.new_group([rank, (rank + 1) % me.world]) for rank in range(me.world)]
        a = torch.ones(4)
        for _ in range(3):
            for first in ((me.rank - 1) % me.world, me.rank):
                reduced(a, group=pairs[first])
                a = a * 0.5
            torch.ones(8).sum().item()
        return torch.isfinite(a).sum().item() >= 0

    assert together(4, program, tmp_path, jitter=2.0) == [True] * 4


def test_a_rank_that_asks_in_a_loop(tmp_path: Path) -> None:
    def program(me: Rank, device: Device | None) -> Any:
        a, asked = torch.ones(4), 0
        work = reduced(a)
        if me.rank == 0:
            while not work.is_completed():
                asked += 1
        else:
            torch.ones(4)
            work.wait()
        return [asked > 5, a.sum().item()]

    assert together(2, program, tmp_path, slow={"host:1": 5.0}) == [[True, 8.0], [False, 8.0]]


def test_the_same_program_writes_the_same_bytes_whatever_the_machine_does(tmp_path: Path) -> None:
    def run(folder: Path, lazy: int) -> list[bytes]:
        def program(me: Rank, device: Device | None) -> Any:
            assert device is not None
            pair = [dist.new_group([0, 1]), dist.new_group([1, 2])]
            side = type(device.current_stream())(device)
            a = torch.randn(64)
            for step in range(12):
                if me.rank == lazy:
                    sum(range(200_000))  # real time passes, no virtual time does
                works = [reduced(a)]
                mine = [group for group in pair if me.rank in dist.get_process_group_ranks(group)]
                works += [reduced(a.clone(), group=group) for group in mine]
                if step % 3 == me.rank:
                    a.sum().item()
                if step % 4 == 1:
                    side.wait_stream(device.current_stream())
                    device.journal.flush()
                with device.stream(side):
                    b = a * 2
                while step == 5 and not works[0].is_completed():
                    pass
                if step % 2:
                    works[0].wait()
                if step == 8:
                    device.synchronize()
                a = a / me.world + b
            return 0

        together(3, program, folder, jitter=1.0, slow={"rank:2": 9.0})
        return [file_of(folder / "trace", rank).read_bytes() for rank in range(3)]

    first, second, third = (run(tmp_path / str(lazy), lazy) for lazy in (0, 1, 2))
    assert [len(one) for one in first] == [len(one) for one in second] == [len(one) for one in third]
    assert first == second == third
    assert isinstance(list(TraceReader(file_of(tmp_path / "0" / "trace", 0)).read())[-1], End)


def test_a_full_pipe_stops_nobody() -> None:
    """Two ranks that write to each other more than a pipe holds, before either reads."""
    links = Links.make(2)
    ranks = [PipeExchange(rank, links) for rank in range(2)]
    count = 10_000

    def talk(rank: int) -> None:
        for number in range(count):
            ranks[rank].post(1, number, (0, 1), 5 * number)
        while not ranks[rank].arrivals(1, count - 1):
            ranks[rank].receive(None)

    other = threading.Thread(target=talk, args=(1,), daemon=True)
    other.start()
    talk(0)
    other.join()
    for rank in range(2):
        assert ranks[rank].arrivals(1, count - 1) == {1 - rank: 5 * (count - 1)}
    links.close()
