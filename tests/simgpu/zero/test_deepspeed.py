"""Stock DeepSpeed with its own CUDA accelerator: the numbers of plain CPU with gloo, bit for bit, and no race."""

from __future__ import annotations

from pathlib import Path

import pytest
from zero_cases import BF16, FP16, HOST, OWN, Case, plain, simulate, told

from detectors import find_races

pytestmark = pytest.mark.imports("deepspeed", "torch._inductor.compile_fx")

CASES = {
    "zero-1 overlapped in bf16": Case(1, {"overlap_comm": True}, BF16),
    "zero-2 in fp16 with an overflow": Case(2, {"overlap_comm": True}, FP16),
    "zero-3 with both offloaded, and DeepSpeed's own Adam": Case(
        3, {"overlap_comm": True, "offload_optimizer": HOST, "offload_param": HOST}, BF16, OWN
    ),
}


@pytest.fixture(scope="session")
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("plain")
    plain(CASES, folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_trains_as_on_the_cpu_and_is_clean(name: str, on_the_cpu: Path, tmp_path: Path) -> None:
    case = CASES[name]
    trace = simulate(case, tmp_path)
    here, there = told(tmp_path, case.ranks), told(on_the_cpu / name, case.ranks)
    for one, other in zip(here, there, strict=True):
        assert (one.pop("accelerator"), other.pop("accelerator")) == ("CUDA_Accelerator", "Plain")
        assert one == other
        assert (one["skipped"] > 0) == ("overflow" in name)
    assert find_races(trace) == []
