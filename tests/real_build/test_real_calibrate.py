"""``streamrace calibrate --host`` measures this machine's host where torch sees a GPU, here a fake one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.device.hardware import load_profile
from tests.real_build.building import RealBuild
from tests.real_build.running import environment

pytestmark = pytest.mark.real_build


def test_without_deepspeed_the_host_is_measured_under_torch_alone(real: RealBuild, tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("raise ModuleNotFoundError('it is not installed')\n")
    variables = environment(real, TORCH_DEVICE_BACKEND_AUTOLOAD="0", STREAMRACE_REAL_BUILD_MEETING=str(tmp_path))
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "streamrace", "calibrate", "--host", "--base", "h100"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {words[0]: words[1:3] for line in done.stdout.splitlines() if len(words := line.split()) == 5}
    assert rows["plain"] == ["122", "87"] and rows["fsdp2"] == ["143", "990"]
    assert done.stdout.count("(ModuleNotFoundError: it is not installed)") == 5
    assert "left out: zero3-checkpointing (" in done.stdout
    made, base = load_profile(str(tmp_path / "mine.toml")), load_profile("h100")
    assert made.call_ns and made.call_ns > 0 and made.launch_us > 0
    assert (made.gpu, made.inter_node_gbits_per_s) == (base.gpu, base.inter_node_gbits_per_s)
