"""hpZ: the secondary partition is written once and never again, so every backward uses the weights of the start.

Forward gathers the primary partitions, which the optimizer writes. Backward gathers the secondary ones, which nothing
rewrites. It needs an operator that saves the parameter itself for backward: `Linear` saves a view of what forward had.
"""

# /// catalogue
# title = "hpZ: secondary partition never rewritten"
# mechanism = """
# The secondary partition is made once; the optimizer's step neither rewrites nor drops it, so backward goes on with \
# the first weights while forward has the new ones. All accesses are ordered: it is stale, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/4851", "https://github.com/deepspeedai/DeepSpeed/pull/4906"]
# kind = "stale"
# known = "0.10.3 to 0.13.1; checked: 0.10.2 is right, 0.10.3, 0.13.1; 0.13.2 to 0.13.4 have the race #5059 instead"
# affected = { packages = ["deepspeed==0.13.1"] }
# fixed = { packages = ["deepspeed==0.13.5"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

ZERO = {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}
ZERO |= {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}  # gathers again, in backward too
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}


class Scale(torch.nn.Module):
    """What it gives back in backward is the weight that backward has."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
weights = [torch.arange(64) + 1.0]  # the latest first. The gradient is the input, all ones
model = torch.nn.Sequential(Scale(weights[0]))
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
for step in range(3):
    x = torch.ones(64, device="cuda", requires_grad=True)
    engine.backward(engine(x).sum())
    engine.step()
    torch.cuda.synchronize()  # also orders this step and the next forward: see ds-second-race
    assert x.grad is not None
    answer(f"the weights of backward {step}", x.grad, weights[0], weights[1:])
    weights.insert(0, weights[0] - 1)
