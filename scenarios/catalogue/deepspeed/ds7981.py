"""ZeRO-1/2 with the optimizer offloaded keeps the last gradient only, of several backward passes before a step.

With gradient_accumulation_steps = 1 a program may set the boundary itself. What earlier backward passes computed is then
stored nowhere, and the last one overwrites the buffer. All is ordered: this is no race.
"""
# /// catalogue
# title = "ZeRO-1/2 with offload: of several backward passes only the last counts"
# mechanism = "The gradient is accumulated on the host only if gradient_accumulation_steps is above 1; with boundaries that the program sets, the last backward pass overwrites the others. No access is unordered."
# threads = ["https://github.com/deepspeedai/DeepSpeed/pull/7981"]
# known = "up to 0.18.9; checked: 0.14.3, 0.16.5, 0.18.3, 0.18.9, and 0.19.0 is right"
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
loss = (batches.view(-1, 32) @ start.requires_grad_().T).square().mean() * 3  # the gradients add up
(gradient,) = torch.autograd.grad(loss, start)
zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "zero_optimization": zero}
config |= {"gradient_clipping": 0.0, "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for step, batch in enumerate(batches):
    engine.set_gradient_accumulation_boundary(step == 2)
    engine.backward(engine(batch[engine.global_rank].cuda()).square().mean())
engine.step()
torch.cuda.synchronize()
answer("the weights after a step", engine.module.weight, start - gradient, atol=1e-6)
