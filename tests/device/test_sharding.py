"""Stock DDP and stock FSDP2 on two ranks: the CPU's numbers, and no race."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from world import races, together

STEPS = 4
WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, WIDTH), Block(), Block(), Block(), nn.Linear(WIDTH, 4))


def train(model: nn.Module, rank: int, device: str) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    numbers = torch.Generator().manual_seed(rank)
    # All batches first: to copy one blocks the host, which would order each step behind the one before.
    batches = [
        (torch.randn(6, 8, generator=numbers).to(device), torch.randint(0, 4, (6,), generator=numbers).to(device))
        for _ in range(STEPS)
    ]
    losses = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def numbers_of(model: nn.Module) -> list[Any]:
    made = []
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        made.append(local.detach().float().cpu().tolist())
    return made


def ddp(rank: int, world: int, device: str) -> Any:
    model = nn.parallel.DistributedDataParallel(net().to(device), bucket_cap_mb=0.02)
    return train(model, rank, device), numbers_of(model)


def fsdp(rank: int, world: int, device: str, **how: Any) -> Any:
    model = net().to(device)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (world,))
    for child in model:
        fully_shard(child, mesh=mesh, **how)
    fully_shard(model, mesh=mesh, **how)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no AVG
    return train(model, rank, device), numbers_of(model)


def half(rank: int, world: int, device: str) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(rank, world, device, mp_policy=policy)


@pytest.mark.parametrize("program", [ddp, fsdp, half])
def test_two_ranks_train_as_on_the_cpu_and_are_clean(program: Callable[..., Any], tmp_path: Path) -> None:
    plain = together(2, program, tmp_path / "plain", device="cpu")
    assert together(2, program, tmp_path / "even") == plain
    slow = {"kernel:nccl::*": 50.0, "kernel:aten::*mm*": 20.0}
    assert together(2, program, tmp_path / "slow", slow=slow) == plain
    assert races(tmp_path / "even") == []
    assert races(tmp_path / "slow") == []
