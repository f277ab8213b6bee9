"""ZeRO-2 with overlap_comm overwrites a bucket of gradients while it is still being reduced.

Gradients are copied into two buffers in turn, on the compute stream, and a full one is reduced on a stream of its own,
which waits for the compute stream. The compute stream never waits for it in turn, so the third bucket is written into
the first buffer, though its reduction may not have ended.
"""
# /// catalogue
# title = "ZeRO-2: a bucket of gradients is overwritten while it is reduced"
# mechanism = "Two buffers take turns: the compute stream copies gradients into the one whose reduction, on the reduction stream, it never waits for."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/5606", "https://github.com/deepspeedai/DeepSpeed/issues/5545", "https://github.com/deepspeedai/DeepSpeed/issues/5523"]
# kind = "race"
# known = "0.8.0 to 0.14.2, as the threads say; checked: 0.13.4, 0.14.2"
# affected = { packages = ["deepspeed==0.14.2"] }
# fixed = { packages = ["deepspeed==0.14.3"] }
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
zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 32 * 32}  # a bucket a layer
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
