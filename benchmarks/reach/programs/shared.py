"""Gives the programs a device, a seed, a loop of a few steps, and the line that the runner compares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

DEVICE = os.environ.get("REACH_DEVICE", "cuda")
STEPS = 3

torch.manual_seed(0)


def tell(*values: Any) -> None:
    """Print numbers that must be those of a run on the CPU."""
    print("reach:", *(f"{float(value):.9g}" for value in values), flush=True)


def train(
    model: torch.nn.Module, loss_of: Callable[[], Any], optimizer: Any = None, parameters: Iterable[Any] | None = None
) -> None:
    """Train for a few steps, and tell the losses. SGD does not divide by small numbers, as Adam does."""
    made = optimizer or torch.optim.SGD(parameters or model.parameters(), lr=0.001)
    losses = []
    for _ in range(STEPS):
        made.zero_grad()
        loss = loss_of()
        loss.backward()
        made.step()
        losses.append(loss.item())
    tell(*losses)
