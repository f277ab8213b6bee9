"""DeepSpeed on ranks of one node: ``1``, ``2``, ``3`` (ZeRO), ``hpz``, ``offload``, ``pipeline`` or ``moe``."""

from __future__ import annotations

import os
import sys

import deepspeed
import torch
from shared import STEPS, tell

kind = sys.argv[1]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
batch = torch.randn(2, 16).cuda()
zero = {
    "1": {"stage": 1}, "2": {"stage": 2}, "3": {"stage": 3}, "hpz": {"stage": 3, "zero_hpz_partition_size": 2},
    "offload": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}.get(kind, {"stage": 0})  # fmt: skip
settings = {
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": kind != "offload"}},
    "bf16": {"enabled": kind != "moe" and kind != "pipeline"},
}  # fmt: skip
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)]
if kind == "pipeline":
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed()
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
    engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())
    losses = [float(engine.train_batch(iter([(batch, batch)] * 4))) for _ in range(STEPS)]
else:
    if kind == "moe":
        from deepspeed.moe.layer import MoE
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as grouped

        deepspeed.init_distributed()

        class Experts(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.moe = MoE(16, torch.nn.Linear(16, 16), num_experts=2, ep_size=2, k=1, min_capacity=0)

            def forward(self, given: torch.Tensor) -> torch.Tensor:
                out, loss, _ = self.moe(given)
                return out + 0.01 * loss

        model: torch.nn.Module = Experts()
        parameters = grouped([{"params": list(model.parameters()), "name": "all"}])
        engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=parameters)
    else:
        model = torch.nn.Sequential(*layers)
        engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())
    losses = []
    for _ in range(STEPS):
        given = batch.to(next(engine.parameters()).dtype)
        loss = (engine(given) - given).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
tell(*losses)
