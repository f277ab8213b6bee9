"""Trains a small model with DeepSpeed's ZeRO: ``zero.py STAGE``.

The barriers of torch are left out: the simulated device has them on another stream than torch (departures.md).
"""

from __future__ import annotations

import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

dist.barrier = lambda *_, **__: None

WIDTH = 64
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {
        "stage": int(sys.argv[1]),
        "overlap_comm": True,
        "reduce_bucket_size": 2 * WIDTH * WIDTH,
        "stage3_param_persistence_threshold": WIDTH,
        "stage3_max_live_parameters": 2 * WIDTH * WIDTH,
        "stage3_max_reuse_distance": WIDTH,
    },
}

deepspeed.init_distributed()
deepspeed.get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, model_parameters=model.parameters())
torch.manual_seed(1 + dist.get_rank())
for _ in range(2):
    batch = torch.randn(4, WIDTH).to(engine.device, torch.bfloat16)
    loss = (engine(batch) - batch).square().mean()
    engine.backward(loss)
    engine.step()
