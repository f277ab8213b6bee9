"""FSDP2 with HSDP and CPU offload: a gradient's memory is used again while it is copied to the host."""
# /// catalogue
# title = "HSDP with CPU offload: a gradient's memory is used again while it is copied to the host"
# mechanism = "The reduced gradient is freed when its copy to the host is issued on the all-reduce stream, and the next reduce-scatter gets the memory without waiting for that stream."
# threads = ["https://github.com/pytorch/pytorch/pull/180665"]
# kind = "race"
# known = "2.5.1; the thread reports it of 2026's main, but 2.9.1, 2.12.1 and 2.13.0 hold the memory (_all_reduce_state)"
# affected = { packages = ["torch==2.5.1"] }
# fixed = { packages = ["torch==2.9.1"] }
# ranks = 4
# places = ["_fsdp_collectives.py:foreach_reduce", "_fsdp_collectives.py:foreach_reduce"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed._composable.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(3)))
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
torch.manual_seed(1 + dist.get_rank())
for step in range(2):
    loss = model(torch.randn(8, 32).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item()!r}")
dist.destroy_process_group()
