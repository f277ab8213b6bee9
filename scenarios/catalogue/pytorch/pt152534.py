"""A functional collective inside a custom operator: a cast reads its result before it has arrived."""
# /// catalogue
# title = "AsyncCollectiveTensor: a cast does not wait"
# mechanism = "Inside a custom operator the key of subclasses in Python is left out, and .float() of an AsyncCollectiveTensor reads the tensor within it without the wait for its collective."
# threads = ["https://github.com/pytorch/pytorch/issues/152534"]
# kind = "race"
# known = "2.6.0; 2.13.0 is clean, those between not tried"
# affected = { packages = ["torch==2.6.0"] }
# fixed = { packages = ["torch==2.13.0"] }
# ranks = 2
# places = ["_functional_collectives.py:all_gather_tensor", "_functional_collectives.py:__torch_dispatch__"]
# harm = "harmful"
# ///

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


@torch.library.custom_op("catalogue::gathered_sum", mutates_args=(), device_types="cuda")
def gathered_sum(shard: torch.Tensor) -> torch.Tensor:
    whole = collectives.all_gather_tensor(shard, gather_dim=0, group=dist.group.WORLD)
    return whole.float().sum(dim=-1)


shard = torch.full((256, 64), 1.0 + dist.get_rank(), dtype=torch.bfloat16).cuda()
print(dist.get_rank(), gathered_sum(shard).sum().item())
dist.destroy_process_group()
