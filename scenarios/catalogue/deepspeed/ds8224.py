"""With gradient accumulation, a loss that goes round the engine, through the module in it, is not divided by the steps.

Since 0.18.3 a hook on the engine's output divides the gradient by the micro-batches. What of the loss does not come out
of the engine has no such hook.
"""

# /// catalogue
# title = "gradient accumulation: a loss beside the engine's output is not scaled"
# mechanism = """
# engine.backward leaves the division by gradient_accumulation_steps to a hook on the engine's output. A loss that \
# also uses engine.module has a second way to the weights, without it. All is ordered: wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/8224", "https://github.com/deepspeedai/DeepSpeed/pull/8245"]
# kind = "arithmetic"
# known = "0.18.3 to 0.19.5; checked: both, 0.19.3, 0.19.4, and 0.17.5 and 0.19.6 are right (between the two lies #7718)"
# affected = { packages = ["deepspeed==0.19.3"] }
# fixed = { packages = ["deepspeed==0.19.8"] }
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
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
x = torch.arange(1.0, 65.0)[None]
for _ in range(MICRO):
    engine.backward((engine(x.cuda()) + engine.module(x.cuda())).sum())  # the module is used twice: 2x is its gradient
    engine.step()
torch.cuda.synchronize()
answer("the weights after a step", model.weight, -2 * x)
