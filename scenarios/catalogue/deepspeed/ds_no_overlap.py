"""ZeRO-2 without overlap_comm reduces a bucket of gradients that other streams still fill.

What #8061 was with overlap_comm is there without it: the current stream, which reduces the bucket, waits for none of the
streams that filled it. Here one of two branches runs on a stream of its own, waited for as it should be.
"""
# /// catalogue
# title = "ZeRO-2 without overlap_comm: a bucket is reduced before all streams have filled it"
# mechanism = "The streams on which autograd's hooks copied gradients into a bucket are noted only with overlap_comm; without it the current stream divides and reduces the bucket, and waits for none of them."
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/8061"]
# kind = "open"
# known = "checked: 0.19.8, today's; the fix of #8061 is for overlap_comm alone"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 2
# places = ["stage_1_and_2.py:reduce_independent_p_g_buckets_and_remove_grads", "stage_1_and_2.py:average_tensor"]
# harm = "harmful"
# ///

import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as Stage2


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = (torch.nn.Linear(32, 32, bias=False) for _ in range(3))
        self.side = torch.cuda.Stream()

    def forward(self, x):
        x, here = self.first(x).tanh(), torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            right = self.right(x)
        left, _ = self.left(x), here.wait_stream(self.side)
        return left + right


def average_tensor(self, *arguments, **named):
    if "--cured" in sys.argv:  # the stream that reduces the bucket waits for the other that filled it
        torch.cuda.current_stream().wait_stream(model.side)
    return stock(self, *arguments, **named)


stock, Stage2.average_tensor = Stage2.average_tensor, average_tensor
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = Branches()
zero = {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 2 * 32 * 32}  # a bucket for both branches
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
