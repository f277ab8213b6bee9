"""FSDP2, parameters of one module on two meshes: reduce-scatter inputs are kept in one list for both groups."""
# /// catalogue
# title = "FSDP2, two meshes: reduce-scatter inputs said to be used again too early"
# mechanism = "As the report says: only the last group of a module waits for the reduce-scatters and drops their inputs, which relies on the order in which autograd calls the groups; gradient norms of 95.5 instead of 16.6 were seen."
# threads = ["https://github.com/pytorch/pytorch/pull/177319", "https://github.com/ROCm/pytorch/pull/3501"]
# kind = "not-shown"
# known = "as the report says: 2.12"
# affected = { packages = ["torch==2.12.1"] }
# ranks = 4
# tried = "Under 2.12.1, 4 ranks, this program, the same with the meshes exchanged, and with frozen experts: clean each time. A list that is not drained holds its memory, so it costs memory, and is no race; the norms of the report were measured on ROCm."
# ///

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.expert = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.expert(torch.relu(self.dense(x)))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
whole = init_device_mesh("cuda", (4,))
halves = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))["shard"]
torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(3))).cuda()
experts = {block.expert.weight for block in model}


def place(parameter: nn.Parameter) -> ShardPlacementResult:
    return ShardPlacementResult(Shard(0), FSDPMeshInfo(halves if parameter in experts else whole, shard_mesh_dim=0))


for block in [*model, model]:
    fully_shard(block, mesh=whole, shard_placement_fn=place)
torch.manual_seed(1 + dist.get_rank())
for step in range(2):
    model(torch.randn(8, 32).cuda()).square().mean().backward()
    norms = [parameter.grad.to_local().double().norm() for parameter in model.parameters()]
    print(dist.get_rank(), step, [norm.item() for norm in norms])
    model.zero_grad()
dist.destroy_process_group()
