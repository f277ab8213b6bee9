"""What was reported and what dry runs give: the figures that others measured, within the errors that are told."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from studies import paper

WITHIN = 0.25


def test_llama_7b_takes_as_long_as_users_reported(tmp_path: Path) -> None:
    """DeepSpeed issue 5059: 2 x 8 A100, 12.5 Gbit/s, micro-batch 16, checkpointing: 19.5 to 25.5 s a step.

    The thread does not say the accumulation; without any it comes out.
    """
    found = paper.llama(tmp_path, micro_batches=(16,), accumulations=(1,), workers=1).iloc[0]
    assert paper.THREAD[0] <= found.hpz_step_s <= paper.THREAD[1]
    assert 1 < found.gain < found.derived == 1.5


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """18 billion parameters with 1k tokens per GPU; ``make paper`` does all sixteen rows (README has them)."""
    return paper.zero_plus_plus(tmp_path_factory.mktemp("zero"), models=("gpt-18b",), tokens=(1,), workers=1)


def test_zero_plus_plus_at_100_gbit(table: pd.DataFrame) -> None:
    row = table[table.network == 100].iloc[0]
    assert abs(row.error) <= WITHIN
    assert row.zero3_ours == pytest.approx(row.zero3_theirs, rel=WITHIN)
    assert row.plus_ours == pytest.approx(row.plus_theirs, rel=WITHIN)


def test_zero_plus_plus_at_400_gbit(table: pd.DataFrame) -> None:
    """On the nominal network ours gains less than theirs.

    The reason: their ZeRO-3 reaches 25 TFLOPs there, in which time 3M bytes take 142 Gbit/s, and not 400. On a network
    of the rate at which our ZeRO-3 takes as long, the speed-up comes out.
    """
    row = table[table.network == 400].iloc[0]
    assert row.error < -WITHIN
    assert 100 < row.calibrated_gbit < 200
    assert abs(row.calibrated_error) <= WITHIN


def test_the_rate_is_found_at_which_a_step_takes_so_long() -> None:
    assert paper.solve(lambda rate: 100 / rate, 2.0, 400.0) == pytest.approx(50, rel=1e-3)
    assert paper.solve(lambda rate: 100 / rate, 0.1, 400.0) == 400.0, "even the nominal rate is too slow"
    assert paper.solve(lambda rate: 100 / rate, 60.0, 400.0) == 4.0, "a hundredth of the nominal rate is fast enough"


@pytest.mark.parametrize("wanted", [0.31, 1.0, 3.1, 6.0, 20.0])
def test_so_it_is_where_something_else_than_the_network_counts_too(wanted: float) -> None:
    """A step that other work hides a part of, and that grows more than linearly in the time of a byte."""

    def seconds(rate: float) -> float:
        return max(0.3, 100 / rate) + (10 / rate) ** 2

    assert seconds(paper.solve(seconds, wanted, 400.0)) == pytest.approx(wanted, rel=1e-3)
