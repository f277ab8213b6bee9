"""A recording of several ranks: collectives come out with gloo's bits, at the device's times, in any timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded import Program, live, same, seen, times
from test_nccl import PROGRAMS, mine

from streamrace.device import hardware
from streamrace.device.tokens import Stretch
from streamrace.replay.replayer import Replayer

TIMING = "t1,x9:kernel:nccl::%2A,x3:rank:1,jitter:80:5"
Told = Callable[[int, int, str], Any]


def reductions(rank: int, world: int, device: str) -> Any:
    """Every reduction that NCCL has, in several types."""
    made = []
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            if dtype == torch.bool and op == dist.ReduceOp.AVG:
                continue
            one = (mine(device, 37) * 9).to(dtype)
            dist.all_reduce(one, op=op)
            part = torch.zeros(5, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(part, (mine(device, 5 * world) * 9).to(dtype), op=op)
            whole = (mine(device, 8) * 9).to(dtype)
            dist.reduce(whole, dst=1, op=op)
            made += [one, part, *([whole] if rank == 1 else [])]
    scaled = mine(device, 9)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.3))
    return [*made, scaled]


def lists(rank: int, world: int, device: str) -> Any:
    given = [mine(device, 2 + (rank + other) % 3) for other in range(world)]
    got = [torch.zeros(2 + (rank + other) % 3, device=device) for other in range(world)]
    dist.all_to_all(got, given)
    return got


def races(rank: int, world: int, device: str) -> Any:
    """What is reduced changes while it is on its way, unless compute is fast; nobody waits for the sum."""
    a = mine(device, 64, 64)
    work = dist.all_reduce(a, async_op=True)
    b = a @ a
    a.add_(1)
    assert work is not None
    work.wait()
    return [a, b]


def on_the_device(program: Told) -> Program:
    def run(rank: int, world: int) -> object:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", timeout=timedelta(seconds=60))
        return program(rank, world, "cuda")

    return run


@pytest.mark.parametrize("name", [one.__name__ for one in (*PROGRAMS, reductions, lists, races)])
def test_a_replay_of_ranks_is_the_live_run(name: str, tmp_path: Path) -> None:
    program = on_the_device({one.__name__: one for one in (*PROGRAMS, reductions, lists, races)}[name])
    world = 4 if name in ("subgroups", "all_to_all", "lists") else 2
    replayer = Replayer(live(program, tmp_path / "recorded", world=world))
    replayer.verify()
    assert replayer.recording.world == world
    same(replayer, live(program, tmp_path / "there", TIMING, world=world), TIMING)


def named_streams(rank: int, world: int, device: str) -> Any:
    side: Any = torch.cuda.Stream()
    side.rename("side")
    a = mine(device, 64, 64)
    work = dist.all_reduce(a, async_op=True)
    with torch.cuda.stream(side):
        b = a @ a
    dist.all_reduce(b)
    assert work is not None
    work.wait()
    return [a, b]


@pytest.mark.parametrize("what", ["stream:side", "kernel:aten::mm", "link:nccl*", "rank:1", "host", "host:1"])
def test_a_run_on_a_hardware_profile_is_stretched_by_names(what: str, tmp_path: Path) -> None:
    plain = hardware.HardwareTiming(hardware.load_profile("a100-100gbps"), (0, 1), slow={"kernel:aten::copy_": 1.5})
    program, deviation = on_the_device(named_streams), Stretch(what, 7)
    replayer = Replayer(live(program, tmp_path / "recorded", world=2, profile=plain))
    replayer.verify()
    slower = replace(plain, slow={**plain.slow, what: 7.0})
    there = live(program, tmp_path / "there", world=2, profile=slower)
    timing = replayer.recording.deviated([deviation])
    when = replayer.graph.times(timing)
    assert {key: when[node] for key, node in replayer.graph.ends.items()} == {
        key: end for key, (_, _, end) in times(there).items()
    }
    outcome = replayer.run(timing)
    looks = zip(replayer.looks, outcome.checksums, strict=True)
    assert {(one.rank, one.kind, one.probe): told for one, told in looks} == seen(there)
