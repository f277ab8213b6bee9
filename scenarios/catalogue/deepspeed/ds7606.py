"""hpZ: what is written through GatheredParameters, or loaded from a checkpoint, does not reach the secondary partition.

The next gather reads the secondary partition, as it was before, until the optimizer's step drops it."""

# /// catalogue
# title = "hpZ: secondary partition not rewritten by an edit or a checkpoint"
# mechanism = """
# Leaving GatheredParameters repartitions the primary partition and passes the secondary one by, for it is there \
# already; load_checkpoint writes the primary one alone. The next forward gathers the secondary one. All accesses are \
# ordered: it is stale, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7606", "https://github.com/deepspeedai/DeepSpeed/pull/7707"]
# kind = "stale"
# known = "GatheredParameters: 0.14.3 to 0.18.2, load_checkpoint: 0.13.2 to 0.18.2; checked: 0.13.5, 0.14.2 (the second alone), 0.14.3, 0.18.2, and 0.18.3 is right"
# affected = { packages = ["deepspeed==0.18.2"] }
# fixed = { packages = ["deepspeed==0.18.3"] }
# ranks = 2
# ci = true
# ///

import os
import tempfile

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

ZERO = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}


class Scale(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
first, ones = torch.arange(64.0), torch.ones(64, device="cuda")
model = torch.nn.Sequential(Scale(first.clone()))
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
with tempfile.TemporaryDirectory() as own:
    folder = [own]
    torch.distributed.broadcast_object_list(folder)
    engine.save_checkpoint(folder[0])
    engine.backward(engine(ones).sum())  # the gradient is ones
    engine.step()
    torch.cuda.synchronize()  # this and the next ones order what they follow and the next gather: see ds-second-race
    answer("the weights after a step", engine(ones), first - 1, [first])
    engine.load_checkpoint(folder[0])
    torch.cuda.synchronize()
    answer("the weights after load_checkpoint", engine(ones), first, [first - 1])
with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
    model[0].weight.data.add_(100)
torch.cuda.synchronize()
answer("the weights after GatheredParameters", engine(ones), first + 100, [first, first - 1])
