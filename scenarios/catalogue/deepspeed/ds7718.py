"""ZeRO-2: of the micro-batches of one step only the last one's gradient is used.

Each of them begins anew the list in which their gradients are added up.
"""

# /// catalogue
# title = "ZeRO-2: gradient accumulation keeps the last micro-batch only"
# mechanism = """
# Whether to add to all_grad_tensors or to begin it anew is asked of averaged_gradients, which is empty until the last \
# micro-batch: so each micro-batch begins anew. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = [
#   "https://github.com/deepspeedai/DeepSpeed/issues/7718", "https://github.com/deepspeedai/DeepSpeed/issues/7697",
# ]
# kind = "arithmetic"
# known = "0.17.6 to 0.18.2; checked: both, and 0.17.5 and 0.18.3 are right"
# affected = { packages = ["deepspeed==0.18.2"] }
# fixed = { packages = ["deepspeed==0.18.3"] }
# ranks = 2
# ci = true
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

MICRO = 4  # batches to a step
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": MICRO,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
batches = torch.arange(1.0, 65.0).repeat(2, 1)  # a rank's four micro-batches are the same
for step in range(2):
    for _ in range(MICRO):
        engine.backward(engine(batches[rank, None].cuda()).sum())
        engine.step()
    torch.cuda.synchronize()
    answer(f"the weights after step {step}", model.weight[0], -(step + 1) * batches.mean(0))
