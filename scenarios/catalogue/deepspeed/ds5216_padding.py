"""hpZ: where a parameter does not divide by the ranks, the end of it never reaches the secondary partitions.

How much to copy was asked of the primary partition of the rank: where that is whole and the secondary one is not, nothing
is copied; where that is cut off, its share is taken times the groups. The backward gathers what the memory had before.
"""

# /// catalogue
# title = "hpZ: the end of a parameter is not copied to the secondary partitions"
# mechanism = """
# What is copied into a secondary partition is decided by the bounds of the primary one. With several groups of ranks and \
# a size that does not divide, the end of the parameter is never written. All is ordered: wrong bounds, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/5216"]
# kind = "bounds"
# known = "0.10.0 to 0.13.4; checked: 0.10.3, 0.13.1, 0.13.4 (which has the race #5059, too), and 0.13.5 is right"
# affected = { packages = ["deepspeed==0.13.1"] }
# fixed = { packages = ["deepspeed==0.13.5"] }
# ranks = 4
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

SIZE = 61  # of four ranks: 16 each, of two: 32 each
ZERO = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}


class Scale(torch.nn.Module):
    """What it gives back in backward is the weight that backward has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(SIZE) + 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Sequential(Scale())
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
x = torch.ones(SIZE, device="cuda", requires_grad=True)
engine.backward(engine(x).sum())
torch.cuda.synchronize()
assert x.grad is not None
answer("the weights of backward", x.grad, torch.arange(SIZE) + 1.0)
