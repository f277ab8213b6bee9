"""ZeRO-2 with overlap_comm frees a large gradient while it is reduced, on ranks that own no part of it.

A gradient larger than a bucket is reduced where it lies, on the reduction stream. Ranks that own a part of it record
that stream, since 0.19.0 (ds7965). Of a gradient that two other ranks share, a third one keeps no record: it frees it, and
the compute stream gets the memory again before the gradient was divided and read for the all-reduce.
"""
# /// catalogue
# title = "ZeRO-2: a large gradient is freed while it is reduced, by a rank that does not own it"
# mechanism = "record_stream is called on the ranks that own a part of an oversize gradient only; the others free it, and the compute stream overwrites it before the reduction stream has read it."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7965"]
# kind = "open"
# known = "0.19.0 to today's 0.19.8; checked: both, 0.19.4"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 3
# places = ["stage_1_and_2.py:allreduce_bucket", "engine.py:forward"]
# harm = "harmful"
# ///

import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

if "--cured" in sys.argv:  # every rank records the reduction stream
    stock = DeepSpeedZeroOptimizer.average_tensor

    def average_tensor(self, tensor, *arguments):
        tensor.record_stream(self.reduction_stream)
        stock(self, tensor, *arguments)

    DeepSpeedZeroOptimizer.average_tensor = average_tensor

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential()
for _ in range(5):
    model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 512}  # less than a layer has
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
