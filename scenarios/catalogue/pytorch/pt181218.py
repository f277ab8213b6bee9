"""FSDP2, chunked loss: the head runs chunk by chunk, each with a backward pass of its own, apart from its group."""
# /// catalogue
# title = "FSDP2, chunked loss: a chunk's gradient is accumulated beside the next chunk's backward pass"
# mechanism = "As the thread says: the next chunk's backward pass runs on the default stream beside the accumulation on the reduce-scatter stream, and may be given memory that this still uses."
# threads = ["https://github.com/pytorch/pytorch/pull/181218", "https://github.com/pytorch/pytorch/pull/180428"]
# kind = "not-shown"
# known = "as the thread says: seen on ROCm alone; a wait stands in 2.13.0"
# affected = { packages = [] }
# ranks = 2
# tried = "2.12.1 does not run this at all (mixed Tensor and DTensor). Under 2.13.0 it is clean, and it stays clean when the eight waits of the fix are taken away: reduce_scatter_states holds the memory. The thread, too, leaves what is left to a buffer that Python cannot reach (RCCL)."
# ///

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.body(x))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = Model().cuda()
fully_shard(model.body)
fully_shard([model.norm, model.head], reshard_after_forward=False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 32).cuda() for _ in range(2)]
for batch in batches:
    hidden = model(batch)
    leaf = hidden.detach().requires_grad_()
    for chunk in leaf.chunk(4):
        model.head(chunk).square().mean().backward()
    hidden.backward(leaf.grad)
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(dist.get_rank(), model.head.weight.to_local().double().sum().item())
dist.destroy_process_group()
