"""Runs operators on lists of tensors: one launch for all on CUDA where the tensors are alike, else one for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, optim

SIZES = ((300, 300), (7,), (64, 1000), (1,), (200_000,))


def numbers(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.full(size, 0.5 + at, device="cuda").to(dtype) for at, size in enumerate(SIZES)]


def optimizers() -> None:
    """Train with each optimizer whose default is to update all parameters at once."""
    kinds: tuple[Callable[[list[Tensor]], optim.Optimizer], ...] = (
        partial(optim.SGD, momentum=0.9), optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adamax
    )  # fmt: skip
    for kind in kinds:
        parameters: list[Tensor] = [torch.nn.Parameter(one) for one in numbers()]
        optimizer = kind(parameters)
        for _ in range(2):
            torch.stack([one.square().sum() for one in parameters]).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def lists() -> None:
    """Call operators on lists of one type, of several, and of tensors whose numbers lie otherwise."""
    for a in (numbers(), numbers(torch.bfloat16), numbers(torch.int64), [*numbers(), *numbers(torch.float16)]):
        b = [one.clone() for one in a]
        torch._foreach_add_(a, b, alpha=2)
        torch._foreach_mul_(a, 3)
        made = torch._foreach_div(a, 2.5)
        torch._foreach_sqrt(torch._foreach_abs(made))
        torch._foreach_zero_(b)
        torch._foreach_copy_(b, a)
        one = torch.ones((), device="cuda")
        torch._foreach_mul(a, one)
        torch._foreach_mul(a, torch.ones(()))
        torch._foreach_add(a, [1.0, 2.0, 3.0, 4.0, 5.0] * (len(a) // 5))
    half = numbers(torch.bfloat16)
    torch._foreach_copy_(half, numbers())
    square = torch.ones(40, 40, device="cuda")
    torch._foreach_mul_([square, square.clone()], [square.clone().t(), square.clone()])
    torch._foreach_lerp_(numbers(), numbers(), 0.5)
    torch._foreach_addcdiv_(numbers(), numbers(), numbers(), [0.1, 0.2, 0.3, 0.4, 0.5])
    torch._foreach_maximum_(numbers(), 1.0)


def norms() -> None:
    """Print how much memory is allocated, and how much was at most: CUDA's norm has memory of its own for a while."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for order in (0, 1, 2, float("inf")):
            given = numbers(dtype)
            torch.cuda.reset_peak_memory_stats()
            made = torch._foreach_norm(given, order)  # noqa: F841 - alive while its memory is counted
            print(dtype, order, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())
    parameters = [torch.nn.Parameter(one) for one in numbers()]
    for one in parameters:
        one.grad = torch.ones_like(one)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    print(torch.cuda.memory_stats()["allocation.all.allocated"])


if "--norms" in sys.argv:
    norms()
else:
    optimizers()
    lists()
torch.cuda.synchronize()
