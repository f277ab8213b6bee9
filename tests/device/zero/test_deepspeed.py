"""Stock DeepSpeed with its own CUDA accelerator: the numbers of plain CPU with gloo, bit for bit, and no race."""

from __future__ import annotations

from pathlib import Path

import pytest
from zero_cases import FEW, MANY, Case, plain, simulate, told

from streamrace.detectors import find_races

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")


def compared(case: Case, wanted: Path, folder: Path, *, overflows: bool) -> bool:
    """Are all ranks' losses, parameters and skipped steps those of the CPU, and is no race in the trace?"""
    trace = simulate(case, folder)
    here, there = told(folder, case.ranks), told(wanted, case.ranks)
    for one, other in zip(here, there, strict=True):
        assert (one.pop("accelerator"), other.pop("accelerator")) == ("CUDA_Accelerator", "Plain")
        assert one == other
        assert (0 < one["skipped"] < len(one["losses"])) == overflows
    assert find_races(trace) == []
    return True


@pytest.fixture(scope="session")
def few_on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain(FEW, tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="session")
def many_on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain(MANY, tmp_path_factory.mktemp("many"))


@pytest.mark.parametrize("name", FEW)
def test_deepspeed_trains_as_on_the_cpu_and_is_clean(name: str, few_on_the_cpu: Path, tmp_path: Path) -> None:
    assert compared(FEW[name], few_on_the_cpu / name, tmp_path, overflows="overflow" in name)


@pytest.mark.wide
@pytest.mark.parametrize("name", MANY)
def test_all_of_zero_trains_as_on_the_cpu_and_is_clean(name: str, many_on_the_cpu: Path, tmp_path: Path) -> None:
    assert compared(MANY[name], many_on_the_cpu / name, tmp_path, overflows="overflow" in name)
