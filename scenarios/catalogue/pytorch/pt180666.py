"""FSDP2 with CPU offload: an optimizer in the backward pass reads gradients that have not arrived on the host.

foreach_reduce copies each gradient to pinned memory without waiting, and calls the hook of
register_post_accumulate_grad_hook right after; the host waits for the copy at the end of the backward pass only.
"""
# /// catalogue
# title = "CPU offload: a hook gets the gradient before it has arrived on the host"
# mechanism = "foreach_reduce calls the post-accumulate-grad hook while its non-blocking copy of the gradient to pinned memory is under way, and the host waits for that copy at the end of the backward pass only."
# threads = ["https://github.com/pytorch/pytorch/pull/180666"]
# kind = "race"
# known = "2.8.0, 2.9.1 and 2.12.1 (all run)"
# affected = { packages = ["torch==2.12.1"] }
# fixed = { packages = [] }  # 2.13.0, as it is
# ranks = 2
# places = ["_fsdp_collectives.py:foreach_reduce", "pt180666.py:step_in_backward"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
for layer in [*model, model]:
    fully_shard(layer, offload_policy=CPUOffloadPolicy())


def step_in_backward(parameter: torch.Tensor) -> None:
    parameter.data.add_(parameter.grad, alpha=-1.0)
    parameter.grad = None


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_in_backward)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    loss = model(torch.randn(8, 64).cuda()).square().mean()
    loss.backward()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item()!r}")
dist.destroy_process_group()
