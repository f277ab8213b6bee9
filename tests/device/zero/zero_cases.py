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
# It overflows in the first steps: the largest number of fp16 is 65504. Each halves the scale, so the last ones train.
FP16: Config = {"fp16": {"enabled": True, "initial_scale_power": 17, "hysteresis": 1, "loss_scale_window": 10}}
HOST = {"device": "cpu", "pin_memory": True}
PAGEABLE = {"device": "cpu", "pin_memory": False}


@dataclass(frozen=True)
class Case:
    """``more`` stands beside "zero_optimization", ``zero`` in it. DeepSpeed is told that ``ranks`` lie on ``nodes``."""

    stage: int
    zero: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    optimizer: Config = field(default_factory=lambda: TORCH)
    ranks: int = 2
    nodes: int = 1

    @property
    def config(self) -> Config:
        sizes = SMALL if self.stage == 3 else {"reduce_bucket_size": 5000, "allgather_bucket_size": 5000}
        return {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": self.optimizer,
            "zero_optimization": {"stage": self.stage, **sizes, **self.zero},
            **self.more,
        }


OVERLAP = {"overlap_comm": True}
CLIP = {"gradient_clipping": 0.5}
TWICE = {"gradient_accumulation_steps": 2}
BOTH = {"offload_optimizer": HOST, "offload_param": HOST}
HPZ = {**OVERLAP, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 40}

FEW = {
    "zero-1 overlapped in bf16": Case(1, OVERLAP, BF16),
    "zero-2 in fp16 with an overflow": Case(2, OVERLAP, FP16),
    "zero-3 with both offloaded, and DeepSpeed's own Adam": Case(3, {**OVERLAP, **BOTH}, BF16, OWN),
}
MANY = {
    "zero-0": Case(0),
    "zero-0 in bf16": Case(0, {}, BF16),
    "zero-0 in fp16": Case(0, {}, FP16),
    "zero-0 in fp16 with FusedAdam": Case(0, {}, FP16, OWN),
    "zero-0, accumulated and clipped": Case(0, {}, {**TWICE, **CLIP}),
    "zero-0 with FusedAdam": Case(0, {}, BF16, OWN),
    "zero-1": Case(1, {"overlap_comm": False}),
    "zero-1 overlapped": Case(1, OVERLAP),
    "zero-1 in bf16": Case(1, {"overlap_comm": False}, BF16),
    "zero-1 in fp16 with an overflow": Case(1, OVERLAP, FP16),
    "zero-1, accumulated and clipped": Case(1, OVERLAP, {**BF16, **TWICE, **CLIP}),
    "zero-1 foreach": Case(1, OVERLAP, BF16, FOREACH),
    "zero-1 with FusedAdam": Case(1, OVERLAP, BF16, OWN),
    "zero-1 offloaded, pinned": Case(1, {**OVERLAP, "offload_optimizer": HOST}, BF16),
    "zero-1 offloaded, pageable": Case(1, {**OVERLAP, "offload_optimizer": PAGEABLE}, BF16),
    "zero-2": Case(2, {"overlap_comm": False}),
    "zero-2 overlapped": Case(2, OVERLAP),
    "zero-2 overlapped in bf16": Case(2, OVERLAP, BF16),
    "zero-2 without contiguous gradients": Case(2, {**OVERLAP, "contiguous_gradients": False}, BF16),
    "zero-2, accumulated and clipped": Case(2, OVERLAP, {**BF16, **TWICE, **CLIP}),
    "zero-2 fused": Case(2, OVERLAP, {}, FUSED),
    "zero-2 offloaded, pinned": Case(2, {**OVERLAP, "offload_optimizer": HOST}, BF16),
    "zero-2 offloaded, pageable, accumulated": Case(
        2, {**OVERLAP, "offload_optimizer": PAGEABLE}, {**BF16, **TWICE}, OWN
    ),
    "zero-2 offloaded, in fp16 with an overflow": Case(2, {**OVERLAP, "offload_optimizer": HOST}, FP16),
    "zero-3": Case(3, {"overlap_comm": False}),
    "zero-3 overlapped": Case(3, OVERLAP),
    "zero-3 overlapped in bf16": Case(3, OVERLAP, BF16),
    "zero-3 in fp16 with an overflow": Case(3, OVERLAP, FP16),
    "zero-3, accumulated and clipped": Case(3, OVERLAP, {**BF16, **TWICE, **CLIP}),
    "zero-3 without prefetch": Case(3, {**OVERLAP, "stage3_prefetch_bucket_size": 0}, BF16),
    "zero-3 without persistent parameters": Case(3, {**OVERLAP, "stage3_param_persistence_threshold": 0}, BF16),
    "zero-3 with FusedAdam": Case(3, OVERLAP, BF16, OWN),
    "zero-3 foreach": Case(3, OVERLAP, {}, FOREACH),
    "zero-3, optimizer offloaded, pinned": Case(3, {**OVERLAP, "offload_optimizer": HOST}, BF16),
    "zero-3, optimizer offloaded, pageable": Case(3, {**OVERLAP, "offload_optimizer": PAGEABLE}, BF16),
    "zero-3, both offloaded, pageable": Case(
        3, {**OVERLAP, "offload_optimizer": PAGEABLE, "offload_param": PAGEABLE}, BF16
    ),
    "zero-3, both offloaded, accumulated": Case(3, {**OVERLAP, **BOTH}, {**BF16, **TWICE}),
    "zero-3 on four ranks": Case(3, OVERLAP, BF16, ranks=4),
    "hpZ": Case(3, HPZ, ranks=4),
    "hpZ in bf16, accumulated": Case(3, HPZ, {**BF16, **TWICE}, ranks=4),
    "hpZ without overlap": Case(3, {**HPZ, "overlap_comm": False}, BF16, ranks=4),
    "qwZ": Case(3, {**OVERLAP, "zero_quantized_weights": True}, BF16),
    "hpZ and qwZ": Case(3, {**HPZ, "zero_quantized_weights": True}, BF16, ranks=4),
    "qgZ": Case(
        3,
        {**OVERLAP, "zero_quantized_gradients": True},
        {**BF16, "communication_data_type": "fp16"},
        ranks=4,
        nodes=2,
    ),
}


def plain(cases: dict[str, Case], folder: Path) -> Path:
    """Run all on the CPU with gloo, in another process: what they wrote lies in ``folder/NAME``."""
    for ranks, nodes in sorted({(case.ranks, case.nodes) for case in cases.values()}):
        chosen = {name: case for name, case in cases.items() if (case.ranks, case.nodes) == (ranks, nodes)}
        place = folder / f"{ranks} on {nodes}"
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"}
        configs = [json.dumps(case.config) for case in chosen.values()]
        done = subprocess.run(
            [sys.executable, str(HERE / "zero_plain.py"), str(ranks), str(place), *configs],
            env={**environment, "LOCAL_SIZE": str(ranks // nodes)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        for at, name in enumerate(chosen):
            (place / str(at)).rename(folder / name)
    return folder


def told(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What the ranks of a run wrote."""
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def simulate(case: Case, folder: Path, *more: str) -> Path:
    """Run the script as ``streamrace device --ranks N --trace`` does, from this process; gives the traces' folder.

    ``more``: further options.
    """
    from deepspeed.accelerator import get_accelerator

    from streamrace.device.launch import main

    if case.nodes > 1:  # there is one machine: DeepSpeed takes the number of devices for a node's
        get_accelerator().device_count = lambda: case.ranks // case.nodes
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--trace", str(folder / "trace"), "--ranks", str(case.ranks), *more]
    status = main([*arguments, str(SCRIPT), json.dumps(case.config), str(folder)])
    assert status == 0
    return folder / "trace"
