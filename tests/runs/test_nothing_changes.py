"""The accelerator changes nothing: stock DeepSpeed on it computes the bits that it computes without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reports.data.findings import Findings, Verdict

Run = Callable[..., Findings]


def assert_identical(found: Findings) -> None:
    assert found.divergence is not None
    assert found.divergence.compared > 100
    assert not found.divergence.diverged, found.divergence
    assert found.verdict is Verdict.CLEAN


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("hpz", [1, 2], ids=["plain", "hpz"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["llama", "falcon"])
def test_twelve_steps_are_bit_identical(run: Run, model: str, precision: str, hpz: int, accumulation: int) -> None:
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, steps=12)
    assert_identical(found)
    assert found.steps_done == 12


def test_parameters_that_do_not_divide_by_the_ranks(run: Run) -> None:
    assert_identical(run(size="odd"))


@pytest.mark.parametrize("hpz", [4, 2])
def test_eight_ranks(run: Run, hpz: int) -> None:
    assert_identical(run(ranks=8, nodes=2, hpz=hpz, size="odd", accumulation=1))


def test_frozen_parameters(run: Run) -> None:
    assert_identical(run(frozen=("*layers.0*", "*norm*")))


@pytest.mark.parametrize("bucket", [0, 100, 10_000_000])
def test_any_prefetch_bucket(run: Run, bucket: int) -> None:
    assert_identical(run(prefetch_bucket=bucket))


def test_without_overlap(run: Run) -> None:
    assert_identical(run(overlap_comm=False))


def test_gradient_checkpointing(run: Run) -> None:
    assert_identical(run(checkpointing=True))
