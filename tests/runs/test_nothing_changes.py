"""The accelerator changes nothing: stock DeepSpeed on it computes the bits that it computes without it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest

from streamrace.reports.data.findings import Findings, Verdict

Run = Callable[..., Findings]
# The second step uses what the first has written: secondary partitions, master copies, the optimizer's state. Of two
# ranks each has half of a group; what four have more is in the tests of twelve and of three steps.
SHORT: dict[str, Any] = {"steps": 2, "accumulation": 1}
PAIR: dict[str, Any] = {**SHORT, "ranks": 2, "nodes": 1}


def assert_identical(found: Findings) -> None:
    assert found.divergence is not None
    assert found.divergence.compared > 100
    assert not found.divergence.diverged, found.divergence
    assert found.verdict is Verdict.CLEAN


MODELS, PRECISIONS, PARTITIONS, ACCUMULATIONS = ("llama", "falcon"), ("bf16", "fp32"), (2, 1), (2, 1)
CORNERS = [("llama", "bf16", 2, 1)]  # one; of all settings twelve steps are wide
# With the corner, every two settings are met together: of four settings with two values each, six runs do.
PAIRWISE = [
    ("falcon", "fp32", 1, 1),
    ("llama", "bf16", 1, 2),
    ("falcon", "fp32", 2, 2),
    ("llama", "fp32", 2, 1),
    ("falcon", "bf16", 2, 1),
]


def test_the_settings_below_meet_pairwise() -> None:
    settings = (MODELS, PRECISIONS, PARTITIONS, ACCUMULATIONS)
    for one, other in combinations(range(4), 2):
        met = {(row[one], row[other]) for row in (*CORNERS, *PAIRWISE)}
        assert met == set(product(settings[one], settings[other]))


@pytest.mark.parametrize(("model", "precision", "hpz", "accumulation"), CORNERS)
def test_twelve_steps_are_bit_identical(run: Run, model: str, precision: str, hpz: int, accumulation: int) -> None:
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, steps=12)
    assert_identical(found)
    assert found.steps_done == 12


@pytest.mark.parametrize(("model", "precision", "hpz", "accumulation"), PAIRWISE)
def test_three_steps_of_any_two_settings_are(run: Run, model: str, precision: str, hpz: int, accumulation: int) -> None:
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, steps=3)
    assert_identical(found)
    assert found.steps_done == 3


@pytest.mark.wide
@pytest.mark.parametrize("accumulation", [3, 1])
@pytest.mark.parametrize("hpz", PARTITIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_twelve_steps_of_all_settings_are(run: Run, model: str, precision: str, hpz: int, accumulation: int) -> None:
    test_twelve_steps_are_bit_identical(run, model, precision, hpz, accumulation)


def test_parameters_that_do_not_divide_by_the_ranks(run: Run) -> None:
    assert_identical(run(size="odd", **PAIR))


@pytest.mark.wide
def test_eight_ranks(run: Run) -> None:
    assert_identical(run(ranks=8, nodes=2, hpz=4, size="odd", **SHORT))


@pytest.mark.wide
@pytest.mark.parametrize("hpz", [4, 2])
def test_three_steps_of_eight_ranks(run: Run, hpz: int) -> None:
    assert_identical(run(ranks=8, nodes=2, hpz=hpz, size="odd", accumulation=1))


def test_frozen_parameters(run: Run) -> None:
    assert_identical(run(frozen=("*layers.0*", "*norm*"), **PAIR))


@pytest.mark.parametrize(
    "bucket", [pytest.param(0, marks=pytest.mark.wide), 100, pytest.param(10_000_000, marks=pytest.mark.wide)]
)
def test_any_prefetch_bucket(run: Run, bucket: int) -> None:
    assert_identical(run(prefetch_bucket=bucket, **PAIR))


def test_without_overlap(run: Run) -> None:
    assert_identical(run(overlap_comm=False, **PAIR))


def test_gradient_checkpointing(run: Run) -> None:
    assert_identical(run(checkpointing=True, **PAIR))
