"""Configurations of DeepSpeed for :mod:`zero_script`, and how they are run and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPT = HERE / "zero_script.py"
Config = dict[str, Any]

# Sizes in proportion to the script's model: its norms stay gathered, all else is released and fetched again.
SMALL = {
    "stage3_param_persistence_threshold": 100,
    "stage3_max_live_parameters": 6000,
    "stage3_max_reuse_distance": 1000,
    "stage3_prefetch_bucket_size": 4500,
    "reduce_bucket_size": 5000,
    "sub_group_size": 3000,
}
TORCH: Config = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True, "foreach": False}}
FOREACH: Config = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True, "foreach": True}}
FUSED: Config = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True, "fused": True}}
OWN: Config = {"type": "AdamW", "params": {"lr": 0.01}}  # FusedAdam, or CPUAdam where it is offloaded
BF16: Config = {"bf16": {"enabled": True}}
# It overflows in the first step: the largest number of fp16 is 65504.
FP16: Config = {"fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1, "loss_scale_window": 2}}
HOST = {"device": "cpu", "pin_memory": True}
PAGEABLE = {"device": "cpu", "pin_memory": False}


@dataclass(frozen=True)
class Case:
    """``more`` stands beside "zero_optimization", ``zero`` in it."""

    stage: int
    zero: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    optimizer: Config = field(default_factory=lambda: TORCH)
    ranks: int = 2

    @property
    def config(self) -> Config:
        sizes = SMALL if self.stage == 3 else {"reduce_bucket_size": 5000, "allgather_bucket_size": 5000}
        return {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": self.optimizer,
            "zero_optimization": {"stage": self.stage, **sizes, **self.zero},
            **self.more,
        }


def plain(cases: dict[str, Case], folder: Path) -> None:
    """Run all on the CPU with gloo, in another process: ``folder/RANKS/NAME``."""
    for ranks in sorted({case.ranks for case in cases.values()}):
        chosen = {name: case for name, case in cases.items() if case.ranks == ranks}
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"}
        configs = [json.dumps(case.config) for case in chosen.values()]
        done = subprocess.run(
            [sys.executable, str(HERE / "zero_plain.py"), str(ranks), str(folder / f"of {ranks}"), *configs],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        for at, name in enumerate(chosen):
            (folder / f"of {ranks}" / str(at)).rename(folder / name)


def told(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What the ranks of a run wrote."""
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def simulate(case: Case, folder: Path) -> Path:
    """Run the script as ``python -m simgpu --ranks N --trace`` does, from this process; gives the traces' folder."""
    from simgpu.launch import main

    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--trace", str(folder / "trace"), "--ranks", str(case.ranks)]
    status = main([*arguments, str(SCRIPT), json.dumps(case.config), str(folder)])
    assert status == 0
    return folder / "trace"
