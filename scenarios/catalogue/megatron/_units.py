"""What the programs beside this one share: two steps of a model of a few units, sharded by Megatron-FSDP."""

import torch
from megatron_fsdp import fully_shard
from torch import nn


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return self.linear(x).relu()


def train(units, **how):
    """Prints the losses and the sums of what was learned. ``how``: further arguments of fully_shard."""
    torch.distributed.init_process_group("nccl")
    rank = torch.distributed.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(7)
    model = nn.Sequential(*[Unit() for _ in range(units)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mesh = torch.distributed.init_device_mesh("cuda", (2, 1), mesh_dim_names=("dp", "tp"))
    axes = {"device_mesh": mesh, "dp_shard_dim": "dp", "tp_dim": "tp"}
    model, optimizer = fully_shard(model, optimizer, **axes, fsdp_unit_modules=[Unit], zero_dp_strategy=3, **how)
    # All batches first: to copy one blocks the host, which would order each step behind the one before.
    batches = [torch.randn(4, 32).add(rank).cuda() for _ in range(2)]
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    sums = [parameter.to_local().detach().double().sum() for parameter in model.parameters()]
    print(rank, [loss.item() for loss in losses], [value.item() for value in sums], flush=True)
    torch.distributed.destroy_process_group()
