"""Tests of the peers run on torch's CUDA build, too: each result is that of this build."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import running
from tests.real_build.building import RealBuild

pytestmark = pytest.mark.real_build

TESTS = """
import os
import torch

def test_a_product():
    assert torch.version.cuda.startswith("13") and torch.cuda.device_count() == 2
    assert (torch.ones(2, 3, device="cuda:1") @ torch.ones(3, device="cuda:1")).tolist() == [3.0, 3.0]

def test_b_a_process_ends():
    os._exit(1)

def test_c_a_graph():
    torch.cuda.CUDAGraph().capture_begin()
"""


def test_a_suite_runs_on_the_real_build_and_a_process_that_ends_loses_no_other_test(
    real: RealBuild, tmp_path: Path
) -> None:
    (tmp_path / "test_own.py").write_text(TESTS)
    results = running.run(
        ["test_own.py"], tmp_path / "out", ranks=1, gpus=2, at=tmp_path, plugin="torch_tests", options=["--rootdir=."],
        real=real,
    )  # fmt: skip
    first, second, third = results
    assert (first.said, second.said, third.said) == ("passed", "failed", "failed")
    assert second.why == "a process ended" and "must be captured on a non-default stream" in third.why
