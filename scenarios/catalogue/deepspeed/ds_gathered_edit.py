"""An edit of a gathered parameter is not ordered before the parameter is gathered again.

When deepspeed.zero.GatheredParameters ends, what was edited is copied into the partitions on the compute stream. The next
forward pass gathers from them on the all-gather stream, which never waits for that.
"""
# /// catalogue
# title = "ZeRO-3: the edit of a gathered parameter is not ordered before it is gathered again"
# mechanism = "GatheredParameters copies an edit into the partitions on the compute stream, and the next forward pass gathers them on the all-gather stream, which does not wait for it."
# threads = []
# kind = "open"
# known = "today: 0.19.8; checked too: 0.13.5, 0.14.3, 0.18.3, 0.19.0"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 2
# places = ["partition_parameters.py:_partition_param", "partition_parameters.py:_all_gather_dtype"]
# harm = "harmful"
# ///

import os
import sys

import deepspeed
import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 4096}
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
config |= {"timers": {"throughput": {"enabled": False}}}  # a timer waits for the device, which hides it
model = torch.nn.Sequential()
for _ in range(3):
    model.extend([torch.nn.Linear(32, 32, bias=False), torch.nn.Tanh()])
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
torch.manual_seed(engine.global_rank)
for step in range(3):
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    if "--cured" in sys.argv:
        engine.optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream.wait_stream(
            torch.cuda.current_stream()
        )
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    torch.cuda.synchronize()  # what orders the next forward pass after the optimizer is another race (ds_second_race)
    print(f"rank {engine.global_rank}, step {step}: loss {loss.item()!r}")
