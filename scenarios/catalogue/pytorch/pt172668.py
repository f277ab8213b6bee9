"""A pipeline that receives as late as it can: two ranks each send to the other before they receive."""

# /// catalogue
# title = "Pipelining: with deferred receives two ranks both send first"
# mechanism = """\
# With defer_pp_recv a rank receives just before it computes. The rule against waits in a circle, by which the lower \
# rank receives before it sends, moves only receives that the schedule had before the send; the higher rank defers all. \
# Where the schedule has the lower rank's receive behind its send, both ranks send first."""
# threads = ["https://github.com/pytorch/pytorch/issues/172668", "https://github.com/pytorch/pytorch/pull/178815"]
# kind = "may-hang"
# known = "2.13.0, earlier ones not tried; the cure is the schedule without defer_pp_recv"
# affected = { packages = [], arguments = ["--deferred"] }  # 2.13.0, as it is
# fixed = { packages = [] }
# ranks = 2
# ///

import sys

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

BATCHES = 4

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(rank := torch.distributed.get_rank())
device = torch.device("cuda", rank)
torch.manual_seed(7)
layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()).to(device) for _ in range(2)]
stages = [PipelineStage(layer, rank + 2 * at, 4, device) for at, layer in enumerate(layers)]


def loss(out, wanted):
    return (out - wanted).square().mean()


schedule = ScheduleInterleaved1F1B(stages, BATCHES, loss_fn=loss, defer_pp_recv="--deferred" in sys.argv)
inputs, wanted = torch.randn(BATCHES * 2, 16, device=device), torch.randn(BATCHES * 2, 16, device=device)
losses = []
if rank == 0:
    schedule.step(inputs)
else:
    schedule.step(target=wanted, losses=losses)
print(rank, [one.item() for one in losses], flush=True)
torch.distributed.destroy_process_group()
