"""The accelerator changes nothing: stock DeepSpeed on it computes the bits that it computes without it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest

from streamrace.reports.data.findings import Findings, Verdict

Run = Callable[..., Findings]
# The second step uses what the first has written: secondary partitions, master copies, the optimizer's state. Of two
# ranks each has half of a group; what four have more is in the test of six steps.
PAIR: dict[str, Any] = {"steps": 2, "accumulation": 1, "ranks": 2, "nodes": 1}


def assert_identical(found: Findings) -> None:
    assert found.divergence is not None
    assert found.divergence.compared > 100
    assert not found.divergence.diverged, found.divergence
    assert found.verdict is Verdict.CLEAN


MODELS, PRECISIONS, PARTITIONS, ACCUMULATIONS = ("llama", "falcon"), ("bf16", "fp32"), (2, 1), (2, 1)
FROZEN = ("*layers.0*", "*norm*")
CORNERS = [("llama", "bf16", 2, 1)]  # one; of all settings twelve steps are wide
# With the corner, every two settings are met together: of four settings with two values each, six runs do. The rows
# with secondary partitions bring what else a scenario may say; each of that alone is wide.
PAIRWISE: list[tuple[str, str, int, int, dict[str, Any]]] = [
    ("falcon", "fp32", 1, 1, {}),
    ("llama", "bf16", 1, 2, {}),
    ("falcon", "fp32", 2, 2, {"prefetch_bucket": 100, "checkpointing": True}),
    ("llama", "fp32", 2, 1, {"frozen": FROZEN, "overlap_comm": False}),
    ("falcon", "bf16", 2, 1, {"size": "odd"}),
]


def test_the_settings_below_meet_pairwise() -> None:
    settings = (MODELS, PRECISIONS, PARTITIONS, ACCUMULATIONS)
    for one, other in combinations(range(4), 2):
        met = {(row[one], row[other]) for row in (*CORNERS, *PAIRWISE)}
        assert met == set(product(settings[one], settings[other]))


def test_six_steps_of_four_ranks_are_bit_identical(run: Run) -> None:
    ((model, precision, hpz, accumulation),) = CORNERS
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, steps=6)
    assert_identical(found)
    assert found.steps_done == 6


@pytest.mark.parametrize(("model", "precision", "hpz", "accumulation", "more"), PAIRWISE)
def test_three_steps_of_any_two_settings_are(
    run: Run, model: str, precision: str, hpz: int, accumulation: int, more: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"ranks": 2, "nodes": 1, "steps": 3, **more}
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, **options)
    assert_identical(found)
    assert found.steps_done == 3


@pytest.mark.wide
@pytest.mark.parametrize("accumulation", [3, 1])
@pytest.mark.parametrize("hpz", PARTITIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_twelve_steps_of_all_settings_are(run: Run, model: str, precision: str, hpz: int, accumulation: int) -> None:
    found = run(model=model, precision=precision, hpz=hpz, accumulation=accumulation, steps=12)
    assert_identical(found)
    assert found.steps_done == 12


@pytest.mark.wide
@pytest.mark.parametrize(
    "options",
    [
        {"size": "odd"},
        {"frozen": FROZEN},
        {"overlap_comm": False},
        {"checkpointing": True},
        *({"prefetch_bucket": bucket} for bucket in (0, 100, 10_000_000)),
        {"size": "odd", "ranks": 8, "nodes": 2, "hpz": 4},
        {"size": "odd", "ranks": 8, "nodes": 2, "hpz": 4, "steps": 3},
        {"size": "odd", "ranks": 8, "nodes": 2, "hpz": 2, "steps": 3},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()),
)
def test_each_setting_alone_is_identical(run: Run, options: dict[str, Any]) -> None:
    assert_identical(run(**{**PAIR, **options}))
