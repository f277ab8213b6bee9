"""nn.SyncBatchNorm on two ranks is nn.BatchNorm over the whole batch: values, gradients, running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from world import races, together

SHARES = (3, 5)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    both = torch.randn((2, sum(SHARES), 4, 3, 2), generator=generator, dtype=torch.float64)
    return both[0].clone(), both[1].clone()


def stepped(norm: Any, x: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    x.requires_grad_()
    made = norm(x)
    made.backward(slope)
    assert x.grad is not None
    mean, variance = norm.running_mean, norm.running_var
    return tuple(one.detach().cpu() for one in (made, x.grad, norm.weight.grad, norm.bias.grad, mean, variance))


def synchronised(rank: int, world: int, device: str) -> Any:
    norm = nn.SyncBatchNorm(4).double().to(device)
    x, slope = (one.split(SHARES)[rank].to(device) for one in batch())
    return stepped(norm, x, slope)


def test_two_ranks_give_what_one_batch_norm_over_all_gives(tmp_path: Path) -> None:
    made = together(2, synchronised, tmp_path)
    whole = stepped(nn.BatchNorm2d(4).double(), *batch())
    for i, exact in enumerate(whole):
        one, other = made[0][i], made[1][i]
        if i < 2:
            found = torch.cat([one, other])
        elif i < 4:  # each rank's part of the gradient
            found = one + other
        else:
            found = one
            assert torch.equal(one, other)
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
    assert races(tmp_path) == []
