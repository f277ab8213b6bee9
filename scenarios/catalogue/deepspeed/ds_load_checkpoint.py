"""ZeRO-3: load_checkpoint writes the partitions on the compute stream, and the next forward gathers them on another."""

# /// catalogue
# title = "ZeRO-3: partitions gathered before load_checkpoint has written them"
# mechanism = """
# load_checkpoint copies the loaded weights into the partitions on the current stream. The first all-gather behind it runs \
# on the all-gather stream, which does not wait for the current one: a forward may use the weights of before."""
# threads = []
# kind = "open"
# known = "today: 0.19.8; checked: 0.14.3, 0.16.5, 0.18.3, 0.19.8; in 0.13.5 its timers order the two, by chance"
# affected = { packages = ["deepspeed==0.19.8"] }
# fixed = { packages = ["deepspeed==0.19.8"], arguments = ["--cured"] }
# ranks = 2
# places = ["stage3.py:_rigid_load_state_dict", "partition_parameters.py:_dist_allgather_fn"]
# harm = "harmful"
# ///

import os
import shutil
import sys
import tempfile

import deepspeed
import torch

ZERO = {"stage": 3, "stage3_param_persistence_threshold": 0}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}
CONFIG |= {"timers": {"throughput": {"enabled": False}}}  # its wait orders the two by chance

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
x = torch.randn(1, 64).cuda()
model = torch.nn.Linear(64, 1, bias=False)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
folder = f"{tempfile.gettempdir()}/ds-load-checkpoint-{os.getppid()}"  # of this run: its ranks have one parent
engine.save_checkpoint(folder)
for _ in range(3):
    engine.backward(engine(x).sum())
    engine.step()
    torch.cuda.synchronize()
engine.load_checkpoint(folder)
if "--cured" in sys.argv:
    torch.cuda.synchronize()
print(f"rank {engine.global_rank}: {engine(x).item()!r}")
if engine.global_rank == 0:
    shutil.rmtree(folder)
