"""ZeRO-3: the count of a bucket's elements is never set back, so the next step's gradients lie behind the last one's.

They are copied behind them, and reduced from the front. Only with `reduce_scatter` off is the buffer itself reduced;
with it on the values are right, and once the count is above the bucket's size each gradient is reduced alone.
"""

# /// catalogue
# title = "ZeRO-3: the gradients of the step before are reduced again"
# mechanism = """
# bucket.elements is not set to zero when its gradients are reduced. The next gradients are copied to that offset, and the \
# all-reduced buffer is read from its begin: the step before's. All accesses are ordered: it is stale, and no race."""
# threads = ["https://github.com/deepspeedai/DeepSpeed/issues/7415", "https://github.com/deepspeedai/DeepSpeed/pull/7418"]
# kind = "stale"
# known = "0.17.2; 0.17.1 and 0.17.3 were read, and 0.17.4 is right"
# affected = { packages = ["deepspeed==0.17.2"] }
# fixed = { packages = ["deepspeed==0.17.4"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

ZERO = {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_scatter": False, "reduce_bucket_size": 4096}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": ZERO}

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
model = torch.nn.Linear(64, 1, bias=False)
torch.nn.init.zeros_(model.weight)
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
before, batches = torch.zeros(64), [torch.arange(1.0, 65.0) * (step + 1) for step in range(3)]
for step, batch in enumerate(batches):
    engine.backward(engine(batch[None].cuda()).sum())  # the gradient is the batch
    engine.step()
    torch.cuda.synchronize()
    with deepspeed.zero.GatheredParameters(model.weight):
        weight = model.weight.detach()[0].cpu()
    answer(f"the update of step {step}", before - weight, batch, batches[:step][::-1])
    before = weight
