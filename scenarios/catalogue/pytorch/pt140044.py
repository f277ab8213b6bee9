"""FSDP2 with HSDP and a reduction in bf16: the next layer reduces into memory that this one still reads.

The reduce-scatter's output is allocated on the reduce-scatter stream, all-reduced and cast to fp32 on another stream,
and then nobody holds it: the next layer's reduce-scatter writes into it. In these releases NCCL records its own
stream for the all-reduce, so it is the cast that reads what the next layer wrote.
"""
# /// catalogue
# title = "HSDP: the all-reduce's buffer is given to the next reduce-scatter"
# mechanism = "The bf16 output of a reduce-scatter is freed when its all-reduce and its cast are issued on the all-reduce stream; the next layer's reduce-scatter gets the same memory and does not wait for that stream."
# threads = ["https://github.com/pytorch/pytorch/pull/140044", "https://github.com/pytorch/pytorch/pull/180900"]
# kind = "race"
# known = "2.5.1"
# affected = { packages = ["torch==2.5.1"] }
# fixed = { packages = ["torch==2.6.0"] }
# ranks = 4
# places = ["_fsdp_common.py:_to_dtype_if_needed", "_fsdp_collectives.py:foreach_reduce"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(3))).cuda()
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(2)]
losses = []
for batch in batches:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
torch.cuda.synchronize()
if dist.get_rank() == 0:
    print("losses", [loss.item() for loss in losses])
    print("sums", [layer.weight.to_local().double().sum().item() for layer in model])
dist.destroy_process_group()
