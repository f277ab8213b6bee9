"""ZeRO-3: a parameter whose size does not divide by the ranks spoils the first elements of the one behind it.

Where stage3_use_all_reduce_for_fetch_params gathers by a sum, the parameters lie in one buffer, which is sized with the
padding of each and filled without it. The padding, which nothing ever wrote, is added to what follows.
"""

# /// catalogue
# title = "ZeRO-3: padding is summed into the next parameter (fetch by all-reduce)"
# mechanism = """
# The buffer of the all-reduce is sized by ds_numel_aligned and walked by ds_numel, so the padding of a parameter, \
# which nothing wrote, is added to the next one's first elements. All is ordered: it is wrong bounds, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/8158"]
# kind = "bounds"
# known = "0.14.3, which brought the setting, to 0.19.3; checked: both, and 0.19.4 is right"
# affected = { packages = ["deepspeed==0.19.3"] }
# fixed = { packages = ["deepspeed==0.19.4"] }
# ranks = 2
# ci = true
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

SIZES = (57, 64)
ZERO = {"stage": 3, "stage3_use_all_reduce_for_fetch_params": True, "stage3_param_persistence_threshold": 0}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Parameter(torch.arange(size) + 1.0) for size in SIZES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one, self.two]) * x


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Sequential(Pair())
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
one, two = engine(torch.ones(sum(SIZES), device="cuda")).split(SIZES)
answer("the padded parameter", one, torch.arange(SIZES[0]) + 1.0)
answer("the parameter behind it", two, torch.arange(SIZES[1]) + 1.0)
