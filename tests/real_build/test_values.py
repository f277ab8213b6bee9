"""Programs have on torch's real CUDA build the values that they have on the CPU, and on the simulated device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real_build.building import ROOT, RealBuild
from tests.real_build.running import PROGRAMS, hpz, run, simulate

pytestmark = [pytest.mark.real_build, pytest.mark.timeout(900)]


def test_operators_have_the_bits_of_the_cpu(real: RealBuild) -> None:
    assert run(real, PROGRAMS / "operators.py").lines == ("144 compared",)


def test_small_programs_of_one_rank_leave_the_same_values(real: RealBuild) -> None:
    program = PROGRAMS / "corpus.py"
    assert run(real, program).lines == simulate(program).lines


def test_collectives_of_two_ranks_deliver_the_same_numbers(real: RealBuild) -> None:
    program = PROGRAMS / "collectives.py"
    ran = run(real, program, ranks=2)
    assert ran.sorted_lines == simulate(program, ranks=2).sorted_lines
    assert "rank 0: all_gather [1.0, 2.0, 11.0, 12.0]" in ran.lines
    assert "rank 1: all_reduce RedOpType.AVG torch.bfloat16 [6.0, 7.0, 8.0, 9.0]" in ran.lines


@pytest.mark.parametrize("program", [ROOT / "examples" / "fsdp2.py", PROGRAMS / "ddp.py"], ids=lambda file: file.stem)
def test_stock_training_of_two_ranks_has_the_same_losses(real: RealBuild, program: Path) -> None:
    ran = run(real, program, ranks=2)
    assert len(ran.lines) >= 3
    assert ran.sorted_lines == simulate(program, ranks=2).sorted_lines


def test_hpz_of_stock_deepspeed_has_the_same_losses(real: RealBuild, tmp_path: Path) -> None:
    program = hpz(tmp_path)
    losses = [line for line in run(real, program, ranks=2).lines if re.match(r"step \d: loss", line)]
    assert len(losses) == 3
    assert losses == [line for line in simulate(program, ranks=2).lines if re.match(r"step \d: loss", line)]
