"""Stock DeepSpeed, ZeRO-3 with hpZ, as a user writes it: four ranks on simulated GPUs, no GPU needed.

hpZ keeps a second copy of each parameter within a group of ranks (here 2), and gathers from that copy in the backward
pass. DeepSpeed before 0.13.5 did not wait until the copy was written; the check says whether your release and your
settings do. It judges all streams, collectives and frees of all four ranks.

    streamrace check --ranks 4 examples/deepspeed_hpz.py

Verdict: clean, exit status 0.
"""

import os

import deepspeed
import torch
from torch import nn

WIDTH = 64
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "zero_hpz_partition_size": 2,
        "stage3_param_persistence_threshold": WIDTH,  # biases stay gathered
        "stage3_max_live_parameters": 2 * WIDTH * WIDTH,  # so weights are gathered again in the
        "stage3_max_reuse_distance": WIDTH,  # backward pass, as those of a large model are
    },
}

deepspeed.init_distributed()
rank = int(os.environ["RANK"])
deepspeed.get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
engine, *_ = deepspeed.initialize(model=model, config=CONFIG, model_parameters=model.parameters())

torch.manual_seed(1 + rank)  # each rank has its own data
for step in range(1, 4):
    batch = torch.randn(4, WIDTH).to(engine.device, torch.bfloat16)
    loss = (engine(batch) - batch).square().mean()
    engine.backward(loss)
    engine.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.6f}")
