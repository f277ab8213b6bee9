"""accelerate's loop: ``plain``, ``bf16``, ``accumulate``, ``ds-zero2``, ``fsdp2`` or ``dispatch``."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin, dispatch_model
from shared import DEVICE, STEPS, tell

kind = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
data = torch.utils.data.DataLoader(torch.randn(8 * STEPS, 16), batch_size=4)
if kind == "dispatch":
    model = dispatch_model(model, {"0": 0, "1": 0, "2": 1})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in list(data)[:STEPS]:
        loss = (model(batch.cuda()) - batch.cuda(0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tell(*losses)
    sys.exit()
options = {
    "bf16": lambda: {"mixed_precision": "bf16"},
    "accumulate": lambda: {"gradient_accumulation_steps": 2},
    "ds-zero2": lambda: {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=2)},
    "fsdp2": lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)},
}.get(kind, dict)()
accelerator = Accelerator(cpu=DEVICE == "cpu", **options)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data)
losses = []
for batch in data:
    with accelerator.accumulate(model):
        loss = (model(batch) - batch).float().square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()[None]).mean().item())
if accelerator.is_main_process:
    tell(*losses)
accelerator.end_training()
