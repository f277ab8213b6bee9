"""The C++ part under AddressSanitizer and UndefinedBehaviorSanitizer: a program that goes through all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.host, pytest.mark.wide, pytest.mark.timeout(1200)]

PROGRAM = """
import torch
from torch import nn

def reuse(side):
    kept = []
    for size in (10, 1000, 300000, 5000000):
        a = torch.ones(size, device="cuda")
        with torch.cuda.stream(side):
            a.sum()
        a.record_stream(side)
        kept.append(a[size // 2 :].clone())
        del a
    torch.cuda.empty_cache()
    return sum(one.sum().item() for one in kept)

def host():
    for size in (10, 70, 1000):
        pinned = torch.ones(size).pin_memory()
        there = pinned.to("cuda", non_blocking=True)
        back = torch.empty(size, pin_memory=True)
        back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        assert back.tolist() == pinned.numpy().tolist()

def train():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4), nn.Dropout()).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for _ in range(3):
        images, labels = torch.randn(4, 3, 8, 8, device="cuda"), torch.tensor([0, 1, 2, 3]).cuda()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

side = torch.cuda.Stream()
for _ in range(3):
    reuse(side)
    host()
    train()
a = torch.ones(4, device="cuda")
a.untyped_storage().resize_(0)
a.resize_(1000)
event = torch.cuda.Event(enable_timing=True)
event.record(side)
while not event.query():
    pass
torch.cuda.synchronize()
print("whole")
"""


@pytest.mark.parametrize("sanitizer", ["address", "undefined"])
def test_a_program_runs_clean_under(sanitizer: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "STREAMRACE_SANITIZE": sanitizer}
    if sanitizer == "address":
        found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment["LD_PRELOAD"] = found.stdout.strip()
        environment["ASAN_OPTIONS"] = "detect_leaks=0"  # the interpreter's own
    command = [sys.executable, "-m", "streamrace.device", "--trace", str(tmp_path / "trace"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "whole"
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr
