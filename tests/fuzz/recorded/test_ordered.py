"""The property at the heart: where streams are ordered, timing cannot change a bit; where they are not, it can."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from streamrace.fuzz.strategy import draw_timing
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import witness
from tests.runs.timings import RETIMED


@pytest.mark.parametrize("count", [15, pytest.param(500, marks=pytest.mark.wide)])
@pytest.mark.parametrize("fix", ["stream-sync", "event", pytest.param("device-sync", marks=pytest.mark.wide)])
def test_with_a_fix_no_timing_changes_a_bit(fix: str, count: int, subject: Callable[[str], Subject]) -> None:
    one = subject(fix)
    random = Random(f"timings of {fix}")
    timings = {draw_timing(random, one, most=6, strongest=1 << 14) for _ in range(count)}
    assert len(timings) > 0.8 * count
    orders = set()
    for timing in timings:
        outcome = one.replayer.run(one.timing(timing))
        assert outcome.checksums == one.reference.checksums, timing
        assert outcome.departure is None, timing
        orders.add(outcome.order.tobytes())
    assert len(orders) > 0.6 * count  # the timings did change what came before what
    assert not one.races


@pytest.mark.parametrize("fix", ["stream-sync", "event", pytest.param("device-sync", marks=pytest.mark.wide)])
def test_with_a_fix_none_of_the_named_timings_does(fix: str, subject: Callable[[str], Subject]) -> None:
    """The machines and slow parts that runs are tried with (``tests/runs/test_race.py``), of one recorded run."""
    one = subject(fix)
    orders = set()
    for name, retimed in RETIMED.items():
        outcome = one.replayer.run(retimed(one.recording.timing))
        assert outcome.checksums == one.reference.checksums, name
        assert outcome.departure is None, name
        orders.add(outcome.order.tobytes())
    assert len(orders) == len(RETIMED)


def test_without_one_some_of_them_do(subject: Callable[[str], Subject]) -> None:
    one = subject("none")
    diverged = {
        name
        for name, retimed in RETIMED.items()
        if one.judged(one.replayer.run(retimed(one.recording.timing))).diverged
    }
    assert {"slow compute", "slow copies"} <= diverged
    assert not {"paper", "launch bound"} & diverged


def test_without_one_each_race_has_a_harmful_witness(subject: Callable[[str], Subject]) -> None:
    one = subject("none")
    assert len(one.races) == 2
    assert not one.run().diverged  # as recorded it does not show
    racing = {name.name for race in one.races for name in race.names}
    for race in one.races:
        found = witness(one, race)
        assert found.harmful
        assert len(found.deviations) == 1
        assert found.verdict is not None
        assert found.verdict.first is not None
        assert found.verdict.first.name in racing
        assert (found.verdict.first.step, found.verdict.first.phase) == (2, "backward")
