"""ZeRO-3 runs Muon in the reduction of every micro-batch, and adds up its results.

Muon has to orthogonalise the gradient of a step, once. With gradient accumulation its momentum goes on several times a
step, and as many orthogonal matrices are added up as there are micro-batches.
"""

# /// catalogue
# title = "ZeRO-3: Muon runs once per micro-batch, not once per step"
# mechanism = """
# The update is made in the reduction of a bucket, which every micro-batch has, and not in the step: it is larger by \
# the number of micro-batches. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/8443", "https://github.com/deepspeedai/DeepSpeed/pull/8600"]
# kind = "arithmetic"
# known = "0.18.9, which brought Muon to ZeRO-3, to 0.19.7; checked: both, 0.19.4, and 0.19.8 is right"
# affected = { packages = ["deepspeed==0.19.4"] }
# fixed = { packages = ["deepspeed==0.19.8"] }
# ranks = 2
# ///

import os

import deepspeed
import torch
from deepspeed.runtime.zero.muon.original_muon import muon_update

from streamrace.detectors.values.answers import answer

MICRO = 4  # batches to a step
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": MICRO,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "Muon", "params": {"lr": 1.0, "momentum": 0.5}},
    "zero_optimization": {"stage": 3, "reduce_scatter": False, "stage3_param_persistence_threshold": 0},
}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(16, 16, bias=False)
gradient = torch.randn(16, 16)
weight = model.weight.detach().clone()
engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
for _ in range(MICRO):
    engine.backward((engine(torch.eye(16, device="cuda")) * gradient.T.cuda()).sum())
    engine.step()
torch.cuda.synchronize()
with deepspeed.zero.GatheredParameters(model.weight):
    update = muon_update(gradient.clone(), torch.zeros(16, 16), beta=0.5)
    answer("the update of a step", weight - model.weight.detach().cpu(), update, atol=2e-2)
