"""A training script as users of DeepSpeed write it: ``zero_script.py CONFIG FOLDER``. It knows nothing of a simulation.

Its loop reads no value of the device, so that nothing is ordered by chance. What came of it is written at the end:
``FOLDER/rankN.json``. With ``"look": false`` nothing is read then either.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

WIDTH = 32


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """The same numbers wherever its parameters lie: a GPU draws others than the CPU."""
        with torch.no_grad():
            for one in self.parameters():
                one.copy_((torch.rand(one.shape, device="cpu") - 0.5) / 3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), Linear(WIDTH, 2 * WIDTH), Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(Linear(WIDTH, WIDTH), Block(), Block(), Block(), Linear(WIDTH, WIDTH))


def tensors(engine: Any) -> Iterator[torch.Tensor]:
    """What this rank holds of parameters and of their fp32 copy."""
    for parameter in engine.module.parameters():
        yield getattr(parameter, "ds_tensor", parameter)
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat"):
        yield from getattr(engine.optimizer, name, ())


def main() -> None:
    config, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    steps, look = config.pop("steps", 4), config.pop("look", True)
    deepspeed.init_distributed()
    rank = int(os.environ["RANK"])
    deepspeed.get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    if config["zero_optimization"]["stage"] == 3:
        told = {key: value for key, value in config.items() if key != "optimizer"}
        with deepspeed.zero.Init(config_dict_or_path=told):
            model = net()
    else:
        model = net()
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    dtype = next(engine.module.parameters()).dtype
    numbers = torch.Generator().manual_seed(rank)
    drawn = torch.randn(steps * engine.gradient_accumulation_steps(), 2, 4, WIDTH, generator=numbers)
    batches = [both.to(engine.device, dtype).unbind() for both in drawn]
    losses = []
    for x, y in batches:
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    if not look:
        return
    kept = hashlib.sha256()
    for one in tensors(engine):
        kept.update(one.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    told = {
        "accelerator": type(deepspeed.get_accelerator()).__name__,
        "losses": [loss.item() for loss in losses],
        "parameters": kept.hexdigest(),
        "skipped": engine.skipped_steps,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
