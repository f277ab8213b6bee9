"""Measures what a recording of a real GPU costs the host, beside plain torch and torch's own sanitizer (CSAN).

The simulated GPU stands for the real one, with the same torch above it. Each is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.device_rows import shell
from benchmarks.figures import Figure

LIMIT_US, LIMIT_OF_CSAN = 5.0, 1.5
ROUNDS = 3
_PROGRAM = """
import contextlib, json, sys, time
import torch

how = sys.argv[1]
torch.set_num_threads(1)
x = torch.ones(64, device="cuda")
layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)) for _ in range(6)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(4, 16, device="cuda")


def adds():
    for _ in range(2000):
        x.add_(1)


def steps():
    for _ in range(20):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def took(work):
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


steps()
if how == "recorded":
    from streamrace.recorder import recording

    context = recording("recorded")
elif how == "csan":
    from torch.cuda._sanitizer import CUDASanitizerDispatchMode

    context = CUDASanitizerDispatchMode()
else:
    context = contextlib.nullcontext()
with context:
    steps()
    told = {"add": took(adds) / 2000 * 1e6, "step": took(steps) / 20 * 1e6}
print(json.dumps(told))
"""


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the three. Raises RuntimeError when a program does not end as expected."""
    took: dict[str, dict[str, list[float]]] = {how: {"add": [], "step": []} for how in ("plain", "recorded", "csan")}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(_PROGRAM)
        for round_ in range(ROUNDS):
            for how, times in took.items():
                say(f"recorder: {how}, round {round_ + 1} of {ROUNDS}")
                command = [sys.executable, "-m", "streamrace.device", "train.py", how]
                done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=shell())
                if done.returncode:
                    raise RuntimeError(f"recorder: {how} ended with {done.returncode}: {done.stderr[-500:]}")
                for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                    times[name].append(value)
    best = {how: {name: median(values) for name, values in times.items()} for how, times in took.items()}
    more = {name: best["recorded"][name] - best["plain"][name] for name in ("add", "step")}
    csan = {name: best["csan"][name] - best["plain"][name] for name in ("add", "step")}
    told = "; ".join(f"{how} {values['add']:.1f}" for how, values in best.items())
    steps = "; ".join(f"{how} {values['step'] / 1000:.2f} ms" for how, values in best.items())
    return [
        Figure("recorder", "add_ on a recorded GPU, more than plain torch on the host", more["add"], "us", LIMIT_US,
               f"us of one operator: {told}"),
        Figure("recorder", "a training step of 54 operators: what recording adds, against what CSAN adds",
               more["step"] / csan["step"], "times", LIMIT_OF_CSAN, steps),
    ]  # fmt: skip
