"""Stock FSDP2 (``fully_shard``) on two ranks: its own streams and collectives, on simulated GPUs.

FSDP2 overlaps the all-gathers and reduce-scatters of its layers with the computing, on streams of its own. The check
follows every wait between them, and knows when memory is freed and given to somebody else.

    streamrace check --ranks 2 examples/fsdp2.py

Verdict: clean, exit status 0.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(3))).to("cuda")
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(1 + rank)  # each rank has its own data
batches = [torch.randn(8, WIDTH).to("cuda") for _ in range(3)]
losses = []
for batch in batches:
    loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
torch.cuda.synchronize()
if rank == 0:
    for step, loss in enumerate(losses, start=1):
        print(f"step {step}: loss {loss.item():.6f}")
dist.destroy_process_group()
