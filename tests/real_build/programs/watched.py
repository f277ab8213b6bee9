"""Trains under a mode that sees operators, and with the callbacks of memory and order; prints what they see."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        print("after", func)
        return result


torch.cuda.init()
torch._C._activate_gpu_trace()
for name in ("event_record", "event_wait", "stream_synchronization", "memory_allocation"):
    register = getattr(_gpu_trace, f"register_callback_for_{name}")
    register(lambda *_, name=name: print(name))

torch.manual_seed(0)
with Watch():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for _ in range(2):
        loss = model(torch.randn(4, 8).cuda()).square().mean()
        loss.backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad()
    loss.item()
# Autograd's thread may free memory while the interpreter ends, and a callback would then end the process.
sys.stdout.flush()
os._exit(0)
