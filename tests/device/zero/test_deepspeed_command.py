"""The whole way: the command starts the ranks of a script that says ``deepspeed.initialize``, and traces them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from zero_cases import FEW, SCRIPT, told

from streamrace.detectors import find_races

pytestmark = [pytest.mark.host, pytest.mark.wide]
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "start", [("streamrace.device", "--ranks", "2"), ("torch.distributed.run", "--nproc-per-node", "2")]
)
def test_a_script_of_deepspeed_runs_unedited_under_the_command_and_torchrun(
    start: tuple[str, ...], tmp_path: Path
) -> None:
    case = FEW["zero-1 overlapped in bf16"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("DS_ACCELERATOR", None)
    beneath = () if start[0] == "streamrace.device" else ("-m", "streamrace.device")
    arguments = ("--trace", str(tmp_path / "trace"), str(SCRIPT), json.dumps(case.config), str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", *start, *beneath, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = told(tmp_path, 2)
    assert {rank["accelerator"] for rank in ranks} == {"CUDA_Accelerator"}
    assert ranks[0]["parameters"] != ranks[1]["parameters"]  # each has a half of the fp32 copy
    assert find_races(tmp_path / "trace") == []
