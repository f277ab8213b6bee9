"""FSDP1, NO_SHARD in mixed precision: the low-precision parameters were freed while the default stream read them."""
# /// catalogue
# title = "FSDP1, NO_SHARD: low-precision parameters are freed while they are used"
# mechanism = "As the thread says: the shard in low precision is allocated on the pre-unshard stream and read on the default one, and a record_stream was dropped, so that its memory was used again too early."
# threads = ["https://github.com/pytorch/pytorch/pull/91096", "https://github.com/pytorch/pytorch/pull/83665"]
# kind = "not-shown"
# known = "by its dates: 1.13, fixed in 2.0"
# affected = { packages = [] }
# ranks = 2
# tried = "The releases with the bug are older than those that the simulated GPU runs (2.5.1 to 2.14). The same program under 2.13.0, where the call stands again, has no race."
# ///

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
how = {
    "sharding_strategy": ShardingStrategy.NO_SHARD,
    "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
    "use_orig_params": True,
}
torch.manual_seed(0)
layers = [torch.nn.Linear(32, 32, bias=False).cuda() for _ in range(3)]
model = FullyShardedDataParallel(torch.nn.Sequential(*(FullyShardedDataParallel(one, **how) for one in layers)), **how)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(3)]
losses = []
for batch in batches:
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
torch.cuda.synchronize()
print(dist.get_rank(), [loss.item() for loss in losses])
dist.destroy_process_group()
