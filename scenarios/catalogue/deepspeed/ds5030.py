"""hpZ of 0.13.2 is said to hang with activation checkpointing on two nodes. Here all ranks come to their end."""

# /// catalogue
# title = "hpZ: training of two nodes hangs in its first steps"
# mechanism = """\
# As the thread says, training hangs since hpZ gathers from the secondary partition wherever there is one. No cause is \
# known."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/5030", "https://github.com/deepspeedai/DeepSpeed/pull/4906"]
# kind = "not-shown"
# known = "as the thread says: the commit of PR 4906, which is in 0.13.2"
# affected = { packages = ["deepspeed==0.13.2"] }
# ranks = 4
# tried = """\
# 0.13.2 with bf16 and inputs of other lengths on each rank: 4 ranks in two groups or one, 8 in two; with and without \
# activation checkpointing (both kinds), accumulation, evaluation between steps, prefetching, reuse, persistent and \
# live parameters, small and large buckets, overlap_comm, weights whose sizes divide by the ranks and others. All \
# ranks make the same calls in the same order, and come to their end; no order of the two groups may hang. What is \
# found is the race of ds5059, and ds5216-padding."""
# ///

import os

import deepspeed
import torch
from torch.utils.checkpoint import checkpoint

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
zero = {"stage": 3, "zero_hpz_partition_size": 2, "overlap_comm": True, "contiguous_gradients": True}
zero |= {"reduce_bucket_size": 4096, "stage3_prefetch_bucket_size": 4096, "stage3_param_persistence_threshold": 64}
config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": zero}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return x + checkpoint(lambda y: self.down(self.up(y).tanh()), x, use_reentrant=False)


with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Sequential(*(Block() for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for step in range(4):
    shape = (2, 5 + engine.global_rank, 32)
    loss = engine(torch.randn(shape, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
