"""GradScaler with its scale on the host, and a fused optimizer: the host reads found_inf before it has arrived."""
# /// catalogue
# title = "GradScaler: the host adds up found_inf before its copy has landed"
# mechanism = "The scale lies where the loss was. Where that is the host, step() and update() copy found_inf of each device to it with non_blocking=True, into pinned memory, and add or use it at once; nothing waits for the copy. A stale 1 skips a step, and halves the scale, in silence."
# threads = []
# kind = "open"
# known = "2.13.0; earlier ones not tried"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 1
# places = ["grad_scaler.py:step", "grad_scaler.py:step"]
# harm = "harmful"
# ///

import sys

import torch
from torch.amp import GradScaler

check = GradScaler._check_inf_per_device


def blocking(self, optimizer):
    check(self, optimizer)
    state = self._per_optimizer_states[id(optimizer)]
    found = state["found_inf_per_device"]
    state["found_inf_per_device"] = {device: flag.to(self._scale.device) for device, flag in found.items()}
    return state["found_inf_per_device"]


if "--cured" in sys.argv:
    GradScaler._check_inf_per_device = blocking
torch.manual_seed(0)
model = torch.nn.Linear(16, 16, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
batch = torch.randn(8, 16).cuda()
scaler = GradScaler("cuda", init_scale=4.0)
for _ in range(3):
    loss = model(batch).square().mean().cpu()  # the loss, and so the scale, is on the host
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print([p.detach().double().sum().item() for p in model.parameters()])
