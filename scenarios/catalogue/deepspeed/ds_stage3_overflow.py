"""ZeRO-3 reads whether a gradient overflowed before that is known, where the step does not run on the default stream.

The flag is computed on the reduction stream. The default stream waits for it, but the all-reduce of the flag is issued
from the current stream, which waits for nothing if it is another one. Here the second step overflows, in the part of the
gradient that is rank 1's: its flag is then read as 0. Up to 0.19.0 the step was taken, and the loss became NaN; 0.19.8
skips it all the same, as it also looks at the norm.
"""
# /// catalogue
# title = "ZeRO-3: the overflow flag is reduced before it is computed"
# mechanism = "The flag is computed on the reduction stream, for which the default stream waits, and not the current one, from which its all-reduce is issued. In 0.19.0 the loss becomes NaN; 0.19.8 reads a wrong flag, and skips the step all the same, as the norm is not finite."
# threads = []
# kind = "open"
# known = "in each release read from 0.13.4 to today's 0.19.8; checked: 0.13.5, 0.14.3, 0.17.4, 0.19.0, 0.19.8"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 2
# places = ["stage3.py:has_overflow", "stage3.py:has_overflow"]
# harm = "harmful"
# ///

import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

if "--cured" in sys.argv:  # the current stream waits, and not the default one
    stock = Stage3.has_overflow

    def has_overflow(self, *arguments):
        accelerator = deepspeed.accelerator.get_accelerator()
        accelerator.default_stream = accelerator.current_stream
        try:
            return stock(self, *arguments)
        finally:
            del accelerator.default_stream

    Stage3.has_overflow = has_overflow

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(32, 32, bias=False)
zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 4096}
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config | {"fp16": {"enabled": True}})
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for step in range(3):
        weights = torch.tensor([1.0] * 31 + [50.0 if step == 1 else 1.0], device="cuda")
        loss = (engine(torch.randn(2, 32, device="cuda", dtype=torch.float16)).float() * weights).mean()
        engine.backward(loss)
        engine.step()
        torch.cuda.synchronize()  # what orders the next forward pass is another race (ds_second_race)
        print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}, skipped {engine.skipped_steps}")
