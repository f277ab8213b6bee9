"""Trains a small model with DistributedDataParallel; prints the loss of each step."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
model = DistributedDataParallel(nn.Sequential(*layers).cuda(), bucket_cap_mb=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + dist.get_rank())  # each rank has its own data
for step in range(3):
    batch = torch.randn(8, 64).cuda()
    loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} step {step}: loss {loss.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
