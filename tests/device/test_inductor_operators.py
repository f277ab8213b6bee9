"""torch's operators, compiled by inductor for the simulated GPU, have the values and gradients that they have on it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.warm import ROOT, shell, with_simulated_gpu

pytestmark = [
    pytest.mark.triton,
    pytest.mark.wide,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]

PARTS = 8
REFUSED = {"linalg.cond", "linalg.eig", "linalg.eigvals", "linalg.svdvals", "norm.nuc"}
"""Their results have another layout on a GPU, and generated code expects that."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_compiled_operator_has_the_values_of_the_operator(part: int, tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("compiled_operators.py"))
    done = with_simulated_gpu(dynamo=False).run(
        "-m", "streamrace", "device", "--compile", "inductor", program, str(part), str(PARTS),
        folder=tmp_path, environment={**shell(), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if re.match(r"[\w.]+: |compared", line)]
    differing = dict(line.split(": ", 1) for line in told[:-1])
    assert int(told[-1].removeprefix("compared ")) > 60, done.stderr
    assert not set(differing) - REFUSED, differing
    assert all("the layout that the result of" in reason for reason in differing.values())
