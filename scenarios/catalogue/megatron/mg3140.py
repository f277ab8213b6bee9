"""HybridDeviceOptimizer: the step waits for the stream that brings gradients, where it must wait for the one that takes weights back."""
# /// catalogue
# title = "Megatron: weights are copied back, and the wait is for the other stream"
# mechanism = "After the step the compute stream waits for the device-to-host stream. The weights come back on the host-to-device stream, for which nothing waits: the next forward pass reads old ones, and the next step on the host writes what is still being copied."
# threads = ["https://github.com/NVIDIA/Megatron-LM/pull/3140"]
# kind = "race"
# known = "core 0.15.3; earlier ones not tried; 0.16.0 is clean"
# affected = { packages = ["megatron-core==0.15.3"] }
# fixed = { packages = ["megatron-core==0.16.0"] }
# ranks = 1
# places = ["hybrid_optimizer.py:param_copy_back_gpu_hook", "mg3140.py:<module>"]
# harm = "harmful"
# ///

import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3))).cuda()
optimizer = HybridDeviceOptimizer(
    model.parameters(),
    offload_fraction=1.0,
    cpu_optimizer_cls=torch.optim.AdamW,
    gpu_optimizer_cls=torch.optim.AdamW,
    overlap_cpu_optimizer_d2h_h2d=True,
    lr=0.5,
)
batches = [torch.randn(8, 64).cuda() for _ in range(3)]
for batch in batches:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print([p.detach().double().sum().item() for p in model.parameters()])
