"""What the programs beside this one share: a small training under FSDP2, one of whose waits is taken away."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def take_away(waits: list[tuple[str, str]]) -> None:
    """From now on FSDP2 does not wait at these places: the name of a function of its own, and what the line says."""
    kind: Any = torch.cuda.Stream

    def leaving_out(method: Any) -> Any:
        def call(self: Any, other: Any) -> None:
            code, number = sys._getframe(1).f_code, sys._getframe(1).f_lineno
            line = linecache.getline(code.co_filename, number)
            here = "_fully_shard" in code.co_filename
            if not (here and any(code.co_name == function and text in line for function, text in waits)):
                method(self, other)

        return call

    kind.wait_event, kind.wait_stream = leaving_out(kind.wait_event), leaving_out(kind.wait_stream)


def train(without: list[tuple[str, str]]) -> None:
    """Prints the losses and the sums of what was learned. ``without``: taken away if the program was told --without."""
    torch.distributed.init_process_group("nccl")
    rank = torch.distributed.get_rank()
    torch.cuda.set_device(rank)
    if "--without" in sys.argv:
        take_away(without)
    torch.manual_seed(7)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)]).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # gradients are reduced in bf16, too, and cast after that
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    # All batches first: to copy one blocks the host, which would order each step behind the one before.
    batches = [torch.randn(4, 32).add(rank).cuda() for _ in range(3)]
    losses = []
    for batch in batches:
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    sums = [parameter.to_local().detach().double().sum() for parameter in model.parameters()]  # type: ignore[attr-defined]
    print(rank, [loss.item() for loss in losses], [value.item() for value in sums], flush=True)
    torch.distributed.destroy_process_group()
