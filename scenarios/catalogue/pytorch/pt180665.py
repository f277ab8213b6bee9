"""FSDP2 with HSDP and CPU offload: a gradient's memory is said to be used again while it is copied to the host."""
# /// catalogue
# title = "HSDP with CPU offload: a gradient's memory is used again while it is copied to the host"
# mechanism = "As the thread says: the reduced gradient is freed when its copy to the host is issued on the all-reduce stream, and the next reduce-scatter gets the memory without waiting for that stream."
# threads = ["https://github.com/pytorch/pytorch/pull/180665"]
# kind = "not-shown"
# known = "as the thread says: before its fix, which was closed and is in no release here"
# affected = { packages = [] }
# ranks = 4
# tried = "This program, 2 x 2 ranks, under 2.9.1, 2.12.1 and 2.13.0: clean. Each group holds the memory in _all_reduce_state until the end of the backward pass (#140044), and the host waits for the copy there: it is not given to another reduce-scatter."
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

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
