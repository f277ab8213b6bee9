"""ZeRO-3 reduces gradients before they are computed where the backward pass does not run on the default stream.

Autograd runs the backward pass on the stream of the forward pass. The reduction stream waits for the default stream
instead of the one that a gradient comes from, copies the gradient into a bucket too early, and reduces that.
"""
# /// catalogue
# title = "ZeRO-3: gradients are reduced before a backward pass beside the default stream has made them"
# mechanism = "The reduction stream waits for the default stream, and not for the current one on which autograd computed the gradient that it copies into its bucket."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7898"]
# kind = "race"
# known = "0.16.3 (whose hooks run on the stream of the gradient) to 0.18.7; checked: 0.16.3, 0.16.5, 0.17.2, 0.17.5, 0.18.5, 0.18.7, and 0.14.3, 0.15.4, 0.16.2 have none"
# affected = { packages = ["deepspeed==0.18.7"] }
# fixed = { packages = ["deepspeed==0.18.8"] }
# ranks = 2
# places = ["engine.py:forward", "stage3.py:__add_grad_to_ipg_bucket"]
# harm = "harmful"
# ci = true
# ///

import os

import deepspeed
import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 4096}
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
model = torch.nn.Sequential()
for _ in range(3):
    model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
side = torch.cuda.Stream()
for step in range(3):
    x = torch.randn(2, 32, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = engine(x).square().mean()
    torch.cuda.current_stream().wait_stream(side)
    engine.backward(loss)
    engine.step()
    torch.cuda.synchronize()  # what orders the next forward pass after the optimizer is another race (ds_second_race)
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
