"""Gradients that are left at the end of backward are reduced in the order of a set, which differs from rank to rank."""

# /// catalogue
# title = "Megatron-FSDP: gradients are reduced in the order of a set"
# mechanism = """\
# At the end of backward _root_post_backward reduces what no unit's own hook has reduced: here all, as the heads' input \
# needs no gradient. It goes through a set of parameters, whose order is that of their addresses on each rank."""
# threads = [
#     "https://github.com/NVIDIA/Megatron-LM/pull/2218",
#     "https://github.com/NVIDIA/Megatron-LM/pull/2252",
# ]
# kind = "hang"
# known = "0.2.3; 0.2.0 has the same lines; 0.3.0 sorts by name"
# affected = { packages = ["megatron-fsdp==0.2.3"] }
# fixed = { packages = ["megatron-fsdp==0.3.0"] }
# ranks = 2
# ///

import random

import torch
from megatron_fsdp import fully_shard
from torch import nn


class Head(nn.Linear):
    """A unit that is sharded alone."""


class Heads(nn.ModuleList):
    def forward(self, x):
        return sum(head(x).square().mean() for head in self)


def ordered(heads):  # as _root_pre_backward adds them up
    found = set()
    for head in heads:
        found |= {head.weight}
    return found


torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
torch.manual_seed(7)
# A set's order is one of the addresses, which differ from rank to rank and from run to run. So that it is the same each
# time, heads are taken of which the set has the first one first on rank 0, and the second one on rank 1.
many = [[Head(8, 8 * size, bias=False) for _ in range(32)] for size in range(1, 13)]
draws = ([random.choice(same) for same in many] for _ in range(10_000))
heads = next(heads for heads in draws if next(iter(ordered(heads))) is heads[rank].weight)
model = Heads(heads).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mesh = torch.distributed.init_device_mesh("cuda", (2, 1), mesh_dim_names=("dp", "tp"))
axes = {"device_mesh": mesh, "dp_shard_dim": "dp", "tp_dim": "tp"}
model, optimizer = fully_shard(model, optimizer, **axes, fsdp_unit_modules=[Head], zero_dp_strategy=3)
loss = model(torch.randn(4, 8).add(rank).cuda())
loss.backward()
optimizer.step()
print(rank, loss.item())
torch.distributed.destroy_process_group()
