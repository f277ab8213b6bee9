"""Checksums that must be equal on all ranks: whose is not, and what is told of many ranks."""

from __future__ import annotations

import pytest

from streamrace.detectors.live.finding import Cause
from streamrace.detectors.live.replicas import odd_one_out


def of_ranks(*sums: int) -> list[dict[str, list[object]]]:
    """What each rank holds of one whole parameter, as it is exchanged."""
    return [{"000001/0/000/weight": [7, [one]]} for one in sums]


def test_where_all_hold_the_same_nothing_is_told() -> None:
    assert odd_one_out(3, of_ranks(5, 5, 5)) is None


def test_the_many_are_right() -> None:
    found = odd_one_out(3, of_ranks(5, 5, 6, 5))
    assert found is not None and (found.cause, found.rank, found.parameter) == (Cause.CORRUPTION, 2, "weight")
    assert found.evidence == (f"Rank 2 holds {6:016x}, most others {5:016x}.",)


@pytest.mark.parametrize(("count", "ends"), [(2, f"{1:016x}."), (8, f"{7:016x}."), (64, f"{7:016x} and 56 more.")])
def test_where_none_is_like_another_all_are_told_or_how_many_are_not(count: int, ends: str) -> None:
    found = odd_one_out(3, of_ranks(*range(count)))
    assert found is not None
    (said,) = found.evidence
    assert said.startswith(f"All ranks should hold the same; they hold {0:016x}, {1:016x}") and said.endswith(ends)
