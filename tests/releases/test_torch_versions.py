"""torch itself in other versions: of each a CPU build is made of the published wheel, 500 to 900 MB to be fetched.

Not in continuous integration: ``make test-releases`` leaves out what is wide; ``make test-all`` runs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import ROOT, shell

VERSIONS = ("2.5.1", "2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.14.1", "2.15.0")

pytestmark = [pytest.mark.wide, pytest.mark.release, pytest.mark.timeout(1800)]

_MOVING = """
import torch

side = torch.cuda.Stream()
weights = torch.zeros(1024, device="cuda")
for _ in range(3):
    weights += 1
    with torch.cuda.stream(side):
        average = weights * 0.1
half = weights.bfloat16().view(32, 32)
torch.cuda.synchronize()
solved = torch.linalg.solve(torch.eye(3).cuda(), half[:3, :3].float())
print(torch.__version__, average.sum().item(), half.mean().item(), solved.sum().item())
print(torch.cuda.memory_allocated() > 0, torch.cuda.mem_get_info()[1] >> 30, torch.cuda.get_device_name())
"""


def _check(version: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamrace", "check", "--package", f"torch=={version}", "--witnesses", "1"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path), *words], cwd=ROOT, capture_output=True, text=True, env=shell()
    )
    if "a constraint of pip's configuration" in done.stderr:
        pytest.skip(done.stderr)
    return done


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_wait_is_found_under_another_torch(version: str, tmp_path: Path) -> None:
    program = tmp_path / "moving.py"
    program.write_text(_MOVING)
    done = _check(version, tmp_path, str(program))
    assert done.returncode == 1, done.stderr
    assert f"{version}+cpu 307.1999816894531 3.0 27.0\nTrue 80 Simulated GPU" in done.stdout
    assert "second read by aten::mul on stream 1" in done.stdout
    assert "Race 1 is harmful" in done.stdout


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_stock_fsdp2_is_clean_under_another_torch(version: str, tmp_path: Path) -> None:
    done = _check(version, tmp_path, "--ranks", "2", "examples/fsdp2.py")
    assert done.returncode == 0, done.stderr
    assert "step 3: loss 1.960168" in done.stdout
    assert "verdict: clean" in done.stdout
