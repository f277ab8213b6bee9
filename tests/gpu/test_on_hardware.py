"""The recorder on a real GPU: for an environment with a CUDA build of torch, on a machine that has a GPU.

Elsewhere these are skipped, by name. ``tests/real_build`` has more of it, on torch's CUDA build without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU in this environment"),
]

LATE = """
import torch

x, y, side = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda"), torch.cuda.Stream()
torch.cuda.synchronize()
x.fill_(2.0)
with torch.cuda.stream(side):
    y.copy_(x)
torch.cuda.synchronize()
print("y is", y.sum().item())
"""
COST = """
import sys, time, torch
from contextlib import nullcontext
from streamrace import recording

x = torch.ones(64, device="cuda")


def took():
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(2000):
        x.add_(1)
    return (time.perf_counter() - began) / 2000 * 1e6


took()
plain = min(took() for _ in range(5))
with recording("races"):
    recorded = min(took() for _ in range(5))
print(plain, recorded)
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(ROOT))))
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={**environment, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("example", "status"), [("racy", 1), ("fixed", 0)])
def test_the_examples_are_judged_as_on_the_simulated_gpu(tmp_path: Path, example: str, status: int) -> None:
    script = ROOT / "examples" / f"{example}_prefetcher.py"
    done = command(tmp_path, "-m", "streamrace", "check", "--on-gpu", str(script))
    assert done.returncode == status, done.stdout + done.stderr


def test_a_held_access_makes_a_race_come_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE)
    assert command(tmp_path, "-m", "streamrace", "check", "--on-gpu", "--name", "it", "train.py").returncode == 1
    done = command(tmp_path, "-m", "streamrace", "provoke", "runs/it", "1", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["plain"], found["held"]) == ("y is 16.0", "y is 0.0"), done.stderr


def test_a_recorded_launch_costs_the_host_some_microseconds(tmp_path: Path) -> None:
    (tmp_path / "cost.py").write_text(COST)
    done = command(tmp_path, "cost.py")
    plain, recorded = map(float, done.stdout.split())
    print(f"{torch.cuda.get_device_name()}: add_ {plain:.2f} us, recorded {recorded:.2f} us")
    assert recorded - plain < 5
