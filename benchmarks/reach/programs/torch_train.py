"""torch's own ways to train on several ranks: ``ddp``, ``fsdp1``, ``fsdp2``, ``tensor``, ``pipeline`` or ``zero``."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from shared import DEVICE, STEPS, tell
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

kind = sys.argv[1]
rank = int(os.environ["RANK"])
if DEVICE != "cpu":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cpu") if DEVICE == "cpu" else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).to(device)
batch = torch.randn(4, 16).to(device)
mesh = init_device_mesh(device.type, (2,))
optimizer_of = torch.optim.AdamW
run = model
if kind == "ddp":
    run = torch.nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp1":
    run = FullyShardedDataParallel(model, device_id=device)
elif kind == "fsdp2":
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif kind == "tensor":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
elif kind == "pipeline":
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    half = torch.nn.Sequential(*(list(model)[:2] if rank == 0 else list(model)[2:]))
    stage = PipelineStage(half, rank, 2, device)
    schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
parameters = half.parameters() if kind == "pipeline" else run.parameters()
if kind == "zero":
    run = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(run.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
losses = []
for _ in range(STEPS):
    if kind == "pipeline":
        found: list[torch.Tensor] = []
        schedule.step(batch) if rank == 0 else schedule.step(target=batch, losses=found)
        losses += [sum(loss.item() for loss in found)]
    else:
        loss = (run(batch) - batch).square().mean()
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
if rank == (kind == "pipeline"):
    tell(*losses)
dist.destroy_process_group()
