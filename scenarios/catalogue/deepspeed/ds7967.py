"""ZeRO-1/2 with the optimizer offloaded drops gradients of micro-steps between the first and the last.

The gradient of the first micro-step is copied to the host; that of each later one is added to it on the GPU, but the sum is
not copied back, so only the first and the last count. All is ordered: this is no race.
"""
# /// catalogue
# title = "ZeRO-1/2 with offload: gradients of the micro-steps between are dropped"
# mechanism = "The sum of accumulated gradients is made on the GPU and copied to the host in the first micro-step only, so the step uses the gradients of the first and the last. No access is unordered."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7967", "https://github.com/deepspeedai/DeepSpeed/pull/6550"]
# known = "0.15.2, with #6550, to 0.18.9; checked: 0.15.4, 0.16.5, 0.18.3, 0.18.9, and 0.14.3 and 0.19.0 are right"
# kind = "arithmetic"
# affected = { packages = ["deepspeed==0.18.9"] }
# fixed = { packages = ["deepspeed==0.19.8"] }
# ranks = 2
# ///

import os

import deepspeed
import torch

from streamrace.detectors.values.answers import answer

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Linear(32, 32, bias=False)
batches = torch.randn(3, 2, 2, 32)  # of each micro-step and rank
start = model.weight.detach().clone()
loss = (batches.view(-1, 32) @ start.requires_grad_().T).square().mean()
(gradient,) = torch.autograd.grad(loss, start)
zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "zero_optimization": zero}
config |= {"gradient_clipping": 0.0, "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for batch in batches:
    engine.backward(engine(batch[engine.global_rank].cuda()).square().mean())
    engine.step()
torch.cuda.synchronize()
answer("the weights after a step", engine.module.weight, start - gradient, atol=1e-6)
