"""FSDP2 with an all-reduce hook on a stream of its own: what it reduces is given to the next reduce-scatter."""
# /// catalogue
# title = "FSDP2, set_all_reduce_hook: the reduce-scatter's output is used again while the hook's stream works on it"
# mechanism = "Without native HSDP nobody holds the output of a reduce-scatter while the hook's stream all-reduces and casts it: foreach_reduce returns state for the all-reduce of HSDP alone. The next layer's reduce-scatter gets the memory, and does not wait for the hook's stream."
# threads = []
# kind = "open"
# known = "2.13.0; earlier ones not tried"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 2
# places = ["_fsdp_common.py:_to_dtype_if_needed", "_fsdp_collectives.py:foreach_reduce"]
# harm = "harmful"
# ///

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(3))).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
stream = torch.cuda.Stream()
replicas = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def reduce(gradients):
    if "--cured" in sys.argv:
        gradients.record_stream(stream)
    dist.all_reduce(gradients, group=replicas)


for layer in [*model, model]:
    fully_shard(layer, mp_policy=policy)
    layer.set_all_reduce_hook(reduce, stream=stream)
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(2)]
losses = []
for batch in batches:
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
torch.cuda.synchronize()
print(
    dist.get_rank(), [loss.item() for loss in losses], [p.to_local().double().sum().item() for p in model.parameters()]
)
dist.destroy_process_group()
