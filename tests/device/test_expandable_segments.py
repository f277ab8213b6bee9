"""Expandable segments (``PYTORCH_ALLOC_CONF=expandable_segments:True``): cached memory serves larger allocations, too.

Beside torch's own allocator: ``tests/real_build/test_device.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.warm import shell

PROGRAM = """
import torch

def ask(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

kept = []
for layer in range(10):  # each needs a little more for a while than the one before
    scratch = ask(40 + 2 * layer)
    kept.append(ask(8))
    del scratch
print(torch.cuda.memory_reserved() >> 20, torch.cuda.memory_stats()["num_alloc_retries"])
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved() >> 20, torch.cuda.memory_allocated() >> 20)
"""
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def ran(tmp_path: Path, *options: str, program: str = PROGRAM, **settings: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "streamrace", "device", *options, str(tmp_path / "train.py")]
    return subprocess.run(command, env=shell() | settings, capture_output=True, text=True, check=True)


def printed(tmp_path: Path, *options: str, program: str = PROGRAM, **settings: str) -> list[str]:
    done = ran(tmp_path, *options, program=program, **settings)
    assert "not simulated" not in done.stderr
    return done.stdout.split()


def test_memory_is_not_cut_into_pieces_that_no_larger_allocation_fits_into(tmp_path: Path) -> None:
    assert printed(tmp_path) == ["510", "0", "102", "80"]
    assert printed(tmp_path, **EXPANDABLE) == ["180", "0", "100", "80"]  # in pages of 20 MiB
    assert printed(tmp_path, "--dry", **EXPANDABLE) == ["180", "0", "100", "80"]


def test_the_allocator_does_not_have_to_give_cached_memory_back(tmp_path: Path) -> None:
    small = {"STREAMRACE_MEMORY": "190MiB"}
    assert int(printed(tmp_path, **small)[1]) > 3
    assert printed(tmp_path, **small, **EXPANDABLE)[1] == "0"


def test_a_larger_allocation_takes_what_is_cached_and_the_pages_behind_it(tmp_path: Path) -> None:
    program = """
import torch

def ask(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

ask(30)  # two pages of 20 MiB, cached at once
kept = ask(50)
print(torch.cuda.memory_reserved() >> 20)
"""
    assert printed(tmp_path, program=program) == ["80"]  # 30 and 50
    assert printed(tmp_path, program=program, **EXPANDABLE) == ["60"]


def test_other_settings_are_told_as_not_simulated(tmp_path: Path) -> None:
    both = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]"}
    done = ran(tmp_path, **both)
    assert done.stdout.split()[0] == "180"
    assert "settings roundup_power2_divisions:[256:1,512:2] are not simulated" in done.stderr
