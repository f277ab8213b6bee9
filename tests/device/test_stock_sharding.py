"""Stock DDP, FSDP1 and FSDP2 in their configurations: the CPU's numbers, bit for bit, and no race."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
from world import races, together

CORE = (
    "ddp, fp16 with an overflow", "ddp, batch norm", "ddp, optimizer in backward", "fsdp1", "fsdp1, offloaded",
    "fsdp1, bf16 reduced in fp32", "fsdp2, checkpointed", "fsdp2, offloaded",
)  # fmt: skip


TIMINGS = {"slow": {"kernel:nccl::*": 50.0, "kernel:aten::*mm*": 20.0}, "even": None}


def check(
    configurations: Mapping[str, stock.Configuration],
    folder: Path,
    *,
    world: int = 2,
    timings: tuple[str, ...] = ("slow",),
) -> None:
    """One process for each rank trains in all of them, one after the other: on the CPU with gloo, and on the device in
    each timing, of which one has slow collectives and products."""

    def program(rank: int, world: int, device: str) -> Any:
        made = {}
        for name, configuration in configurations.items():
            torch.manual_seed(rank)
            try:
                made[name] = configuration(rank, world, device)
            except Exception as error:
                raise AssertionError(f"{name}, on {device}: {error}") from error
        return made

    stock.warm()
    plain = together(world, program, folder / "plain", device="cpu")
    for timing in timings:
        here = together(world, program, folder / timing, slow=TIMINGS[timing])
        different = [
            name for name in configurations if any(a[name] != b[name] for a, b in zip(plain, here, strict=True))
        ]
        assert different == [], timing
        for race in races(folder / timing)[:4]:
            print(timing, race.kind, race.first.kernel, race.second.kernel, race.first.stack, race.second.stack)
        assert races(folder / timing) == []


def test_stock_sharding_trains_as_on_the_cpu_and_is_clean(tmp_path: Path) -> None:
    every = {**stock.DDP, **stock.FSDP1, **stock.FSDP2}
    check({name: every[name] for name in CORE}, tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("family", ["DDP", "FSDP1", "FSDP2"])
def test_every_configuration_does(family: str, tmp_path: Path) -> None:
    check(getattr(stock, family), tmp_path, timings=("slow", "even"))


@pytest.mark.wide
def test_hybrid_sharding_on_four_ranks_does(tmp_path: Path) -> None:
    check({**stock.HYBRID1, **stock.HYBRID2}, tmp_path, world=4)
