"""Pipelining: after a stage's backward pass nothing waits for FSDP2's reduce-scatters.

A stage switches FSDP2's hooks off and calls them by hand after its last microbatch, but not the one that ends the
backward pass, in which the current stream waits for the gradients.
"""
# /// catalogue
# title = "FSDP2 in a pipeline: the optimizer reads gradients that are still being reduced"
# mechanism = "backward_maybe_with_nosync calls FSDP2's post_backward by hand and not its final callback, so the current stream never waits for the reduce-scatter stream: the optimizer reads .grad while it is written."
# threads = ["https://github.com/pytorch/pytorch/pull/144535"]
# kind = "race"
# known = "2.6.0; as the thread says, before it too"
# affected = { packages = ["torch==2.6.0"] }
# fixed = { packages = ["torch==2.8.0"] }
# ranks = 2
# places = ["_fsdp_collectives.py:foreach_reduce", "_dispatch.py:dispatch"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("pp", "dp"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(2))).cuda()
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh["dp"])
stage = PipelineStage(model, 0, 1, torch.device("cuda"), group=mesh.get_group("pp"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda output, target: (output - target).square().mean())
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
torch.manual_seed(1 + dist.get_rank())
batches = [(torch.randn(8, 64).cuda(), torch.randn(8, 64).cuda()) for _ in range(3)]
losses: list[torch.Tensor] = []
for inputs, target in batches:
    schedule.step(inputs, target=target, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    print("losses", [loss.item() for loss in losses])
    print("sum", model[0].weight.to_local().double().sum().item())
dist.destroy_process_group()
