"""ZeRO-3 gathers a parameter for the next forward pass while the optimizer still writes its partition.

The optimizer's result is copied into the partitions on the compute stream; the next forward pass gathers from them on
the all-gather stream, which never waits for that. What orders them elsewhere is there for another reason: a timer, the
gathering of persistent parameters, or a loop that reads its loss in each step.
"""
# /// catalogue
# title = "ZeRO-3: the next forward pass gathers what the optimizer still writes"
# mechanism = "The optimizer's result is copied into the partitions on the compute stream, and the next forward pass gathers them on the all-gather stream, which does not wait for it."
# threads = []
# kind = "open"
# known = "today: 0.19.8; checked too: 0.13.5, 0.14.3, 0.18.3, 0.19.0"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 2
# places = ["stage3.py:_reassign_or_swap_out_partitioned_parameters", "partition_parameters.py:_all_gather_dtype"]
# harm = "harmful"
# ci = true
# ///

import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

if "--cured" in sys.argv:  # after each step the all-gather stream waits for the compute stream
    stock = Stage3.step

    def step(self, closure=None):
        stock(self, closure)
        self.parameter_offload._DeepSpeedZeRoOffload__allgather_stream.wait_stream(torch.cuda.current_stream())

    Stage3.step = step

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
losses = []
for _ in range(3):
    loss = engine(torch.randn(2, 32, device="cuda")).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
print(f"rank {engine.global_rank}: losses {[loss.item() for loss in losses]}")
