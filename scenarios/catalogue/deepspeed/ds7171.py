"""ZeRO-1/2/3: a gradient norm that is infinite makes every weight NaN, instead of leaving the gradient as it is.

0 * inf is NaN, and the norm is replaced by arithmetic: flag * -1 + (1 - flag) * norm. Clipping then divides by it.
"""

# /// catalogue
# title = "gradient clipping: an infinite norm becomes NaN"
# mechanism = """
# An infinite norm is to become -1, which does not clip; computed as flag * -1 + (not flag) * norm it becomes NaN, and \
# clipping makes all weights NaN. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/5242", "https://github.com/deepspeedai/DeepSpeed/pull/7171"]
# kind = "arithmetic"
# known = "ZeRO-1/2: 0.14.3 to 0.16.5; checked: both, 0.15.4, and 0.14.2 and 0.16.6 are right"
# affected = { packages = ["deepspeed==0.14.3"] }
# fixed = { packages = ["deepspeed==0.17.4"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
x = torch.arange(1.0, 65.0)[None] * 2.0**66  # each element is a float, the square of their norm is none
engine.backward(engine(x.cuda()).sum())
engine.step()
torch.cuda.synchronize()
answer("the weights after a step", model.weight, -x, atol=2.0**57)  # 1e-6 is what clipping adds to each norm
