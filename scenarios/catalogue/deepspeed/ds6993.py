"""ZeRO-1 and ZeRO-2 with overlap_comm write every bucket of gradients into the same buffer.

Two buffers should take turns, so that one is filled while the other is reduced. Emptying a bucket resets which of them is
next, so it is always the first, and the compute stream, which waits for the reductions before the last one only,
overwrites gradients that are being reduced.
"""
# /// catalogue
# title = "ZeRO-1/2: one of two buffers of gradients is used alone"
# mechanism = "bucket.clear() resets the index of the buffer in use, so the next bucket is copied on the compute stream into the buffer that the reduction stream still reduces."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/6993", "https://github.com/deepspeedai/DeepSpeed/issues/7188", "https://github.com/deepspeedai/DeepSpeed/pull/7371", "https://github.com/deepspeedai/DeepSpeed/pull/7805"]
# kind = "race"
# known = "0.17.2 to 0.17.4; from 0.17.5 the streams waited for each other, until 0.18.5 mended the cause; checked: 0.17.2, 0.17.4, and 0.17.0 and 0.17.5 have none"
# affected = { packages = ["deepspeed==0.17.4"] }
# fixed = { packages = ["deepspeed==0.18.5"] }
# ranks = 2
# places = ["stage_1_and_2.py:allreduce_bucket", "stage_1_and_2.py:reduce_independent_p_g_buckets_and_remove_grads"]
# harm = "harmful"
# ci = true
# ///

import os

import deepspeed
import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential()
for _ in range(6):
    model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
zero = {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 32 * 32}  # a bucket a layer
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
