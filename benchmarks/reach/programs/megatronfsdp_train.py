"""Megatron-FSDP's ``fully_shard`` around a small model, as its README has it: ``STRATEGY``, what is sharded."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from megatron_fsdp import fully_shard
from shared import train
from torch import nn

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = dist.init_device_mesh("cuda", (dist.get_world_size(), 1), mesh_dim_names=("shard", "tensor"))
layers = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)]
plain = nn.Sequential(nn.Embedding(64, 32), *layers, nn.Linear(32, 64)).cuda()
model, optimizer = fully_shard(
    plain, torch.optim.Adam(plain.parameters(), lr=1e-3), device_mesh=mesh, dp_shard_dim="shard", tp_dim="tensor",
    fsdp_unit_modules=[nn.TransformerEncoderLayer], zero_dp_strategy=sys.argv[1],
)  # fmt: skip
tokens = torch.randint(0, 64, (4, 17)).cuda()


def loss_of() -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


train(model, loss_of, optimizer)
dist.destroy_process_group()
