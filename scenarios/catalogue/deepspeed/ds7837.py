"""bfloat16 without ZeRO: the optimizer divides the gradients by a loss scale that the loss was never multiplied with."""

# /// catalogue
# title = "bfloat16 without ZeRO: gradients divided by 65536"
# mechanism = """
# FP16_UnfusedOptimizer starts with a dynamic loss scale of 65536 and divides by it in its step; for bfloat16 \
# engine.backward does not scale the loss. All accesses are ordered: it is wrong arithmetic, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7837", "https://github.com/deepspeedai/DeepSpeed/pull/7839"]
# kind = "arithmetic"
# known = "0.18.3 to 0.18.5; checked: both, and 0.18.2 and 0.18.6 are right"
# affected = { packages = ["deepspeed==0.18.5"] }
# fixed = { packages = ["deepspeed==0.18.9"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

CONFIG = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "bf16": {"enabled": True}}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
x = torch.arange(1.0, 65.0)[None]
engine.backward(engine(x.cuda().bfloat16()).sum())
engine.step()
torch.cuda.synchronize()
answer("the weights after a step", model.weight, -x)
