"""FSDP2: with HSDP and CPU offload the optimizer reads gradients that have not arrived on the host.

The gradients are copied to the host on the all-reduce stream, but the event for which the host waits at the end of the
backward pass is recorded on the reduce-scatter stream.
"""
# /// catalogue
# title = "HSDP with CPU offload: the optimizer reads a gradient before it has arrived"
# mechanism = "foreach_reduce copies the gradient to pinned memory on the all-reduce stream and records the event for the host on the reduce-scatter stream: the optimizer on the host reads while the copy is under way."
# threads = ["https://github.com/pytorch/pytorch/issues/160291", "https://github.com/pytorch/pytorch/pull/160481"]
# kind = "race"
# known = "2.6.0 and 2.8.0 (both run)"
# affected = { packages = ["torch==2.8.0"] }
# fixed = { packages = ["torch==2.9.1"] }
# ranks = 2
# places = ["_fsdp_collectives.py:foreach_reduce", "_dispatch.py:dispatch"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(2)))
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    loss = model(torch.randn(8, 64).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item()!r}")
dist.destroy_process_group()
