"""CPUOffloadOptimizer: the next forward pass reads weights that are still being copied back."""
# /// catalogue
# title = "torchao: weights are copied back, and nobody waits for the copy"
# mechanism = "step() copies each updated parameter to the GPU on the optimizer's stream, and returns; the next forward pass, on the compute stream, never waits for that stream."
# threads = ["https://github.com/pytorch/ao/pull/1649"]
# kind = "race"
# known = "0.8.0; earlier ones not tried; 0.9.0 is clean"
# affected = { packages = ["torchao==0.8.0"] }
# fixed = { packages = ["torchao==0.9.0"] }
# ranks = 1
# places = ["cpu_offload.py:step", "ao1649.py:<module>"]
# harm = "harmful"
# ///

import torch
from torchao.prototype.low_bit_optim import CPUOffloadOptimizer

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3))).cuda()
optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=False, lr=0.5)
batches = [torch.randn(8, 64).cuda() for _ in range(3)]
for batch in batches:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print([p.detach().double().sum().item() for p in model.parameters()])
