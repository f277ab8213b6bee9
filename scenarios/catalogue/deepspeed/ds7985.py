"""ZeRO-1 with bfloat16 and float32 accumulation: the last micro-batch's gradient is not averaged over the ranks.

The accumulated gradients are reduced before the last one is added, so each rank steps with its own.
"""

# /// catalogue
# title = "BF16_Optimizer: the last micro-batch is added behind the reduction"
# mechanism = """
# _backward_epilogue reduces the float32 gradients first, and then adds the last micro-batch's to them: that one stays \
# the rank's own. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7985"]
# kind = "arithmetic"
# known = "0.18.3 to 0.18.9; checked: 0.18.5, 0.18.6, 0.18.9, and 0.18.2 and 0.19.0 are right; in 0.18.3 with what #7837 has, too"
# affected = { packages = ["deepspeed==0.18.9"] }
# fixed = { packages = ["deepspeed==0.19.0"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

MICRO = 4  # batches to a step
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": MICRO,
    "gradient_clipping": 0.0,
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
}

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
batches = torch.stack([torch.arange(1.0, 65.0), torch.arange(1.0, 65.0) * 2])  # of each rank
for _ in range(MICRO):
    engine.backward(engine(batches[rank, None].cuda().bfloat16()).sum())
    engine.step()
torch.cuda.synchronize()
answer("the weights after a step", model.weight[0], -batches.mean(0))
