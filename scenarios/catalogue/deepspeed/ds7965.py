"""ZeRO-2 with overlap_comm frees a gradient while the reduction stream still reduces it.

A gradient larger than a bucket is not copied, but reduced where it lies, on the reduction stream. It was allocated on
the compute stream and is freed while its reduction is pending; without record_stream the allocator hands its memory to the
next work of the compute stream at once. Each parameter here is a group of its own, so that each rank owns half of it.
"""
# /// catalogue
# title = "ZeRO-2: a large gradient is freed while it is reduced"
# mechanism = "A gradient larger than reduce_bucket_size is reduced in place on the reduction stream and freed, without record_stream, so the compute stream gets its memory again before the reduction has ended."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7965"]
# kind = "race"
# known = "up to 0.18.9, as the thread says; checked: 0.13.4, 0.14.3, 0.16.5, 0.17.4, 0.18.5, 0.18.9"
# affected = { packages = ["deepspeed==0.18.9"] }
# fixed = { packages = ["deepspeed==0.19.0"] }
# ranks = 2
# places = ["stage_1_and_2.py:average_tensor", "engine.py:forward"]
# harm = "harmful"
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
zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 512}  # less than a layer has
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD([{"params": [one]} for one in model.parameters()], lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
