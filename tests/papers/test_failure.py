"""What interruptions cost: the closed form, Daly's, Young's, and the same event by event."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.studies import FACTS
from papers.studies.failure import CASES, RATES, STRATEGIES, events, outages, recovers, smallest_group, study
from papers.studies.outages import Outages, played
from streamrace.device.hardware.facts import fact, facts
from streamrace.scenarios.sharding.schemes import scheme
from tests.examples import examples


@st.composite
def runs(draw: st.DrawFn) -> Outages:
    between = draw(st.floats(600, 1e7))
    return Outages(
        between=between,
        write=draw(st.floats(1e-4, 0.3)) * between,
        rollback=draw(st.floats(0, 0.5)) * between,
        repairable=draw(st.floats(0, 0.95)),
        repair=draw(st.floats(0, 0.5)) * between,
        step=draw(st.floats(0, 0.001)) * between,
    )


@examples(100)
@given(found=runs(), factor=st.floats(0.2, 5))
def test_no_interval_loses_less_than_the_best_one(found: Outages, factor: float) -> None:
    assert found.lost(found.best) <= found.lost(found.best * factor) + 1e-12
    assert found.best <= found.young  # Young's is its first term


@examples(50)
@given(found=runs(), interval=st.floats(0.05, 2))
def test_without_repairs_it_is_dalys(found: Outages, interval: float) -> None:
    one = Outages(found.between, found.write, found.rollback)
    m, tau = one.between, interval * one.between
    daly = m * math.exp(one.rollback / m) * math.expm1((tau + one.write) / m)
    assert math.isclose(one.lost(tau), 1 - tau / daly, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("repairable", [0.0, 0.5, 1.0])
def test_event_by_event_it_comes_to_the_same(repairable: float) -> None:
    found = Outages(10_000, 60, 600, repairable, 300, 8)
    for interval in (300.0, 1000.0, 5000.0):
        counted, error = played(found, interval, intervals=200)
        assert abs(counted - found.lost(interval)) < 4 * error
        assert error < 0.01


def test_events_are_the_same_each_time() -> None:
    found = Outages(10_000, 60, 600)
    assert played(found, 1000, intervals=20) == played(found, 1000, intervals=20)


def test_what_is_never_rolled_back_needs_no_checkpoint() -> None:
    found = Outages(1000, 10, 100, 1.0, 0.0, 0.0)
    assert found.best == math.inf and found.lost(math.inf) == 0.0


def test_a_lost_host_is_read_from_a_peer_only_where_the_state_is_in_each_group() -> None:
    seven = CASES[0]
    assert {name: recovers(scheme(name), seven, 8) for name in ("GGG", "hpZ", "IIG", "NNG", "III", "NII", "NNN")} == {
        "GGG": False, "hpZ": False, "IIG": False, "NNG": False, "III": True, "NII": True, "NNN": True,
    }  # fmt: skip
    assert not recovers(scheme("III"), seven, 64)  # a single group


def test_the_study_has_a_row_for_each_and_the_published_effective_time_is_kept() -> None:
    frame = study()
    assert len(frame) == len(CASES) * len(STRATEGIES) * len(RATES)
    assert (frame[frame.strategy == "hpZ"].lost_best.to_numpy() == frame[frame.strategy == "GGG"].lost_best).all()
    llama = frame[(frame.model == "llama-3.1-405b") & (frame.strategy == "GGG") & (frame.rate == "llama3")].iloc[0]
    assert math.isclose(llama.between_h, 54 * 24 / 419, rel_tol=1e-4)
    assert 1 - llama.lost_best >= fact("failure.llama3_effective", FACTS)  # theirs has other losses too
    host = smallest_group(scheme("III"), CASES[1])
    assert host == 32 and outages(CASES[1], scheme("III"), 32, "llama3").repairable == fact("failure.one_host", FACTS)
    assert all(one.source for one in facts("failure", FACTS).values())


def test_the_closed_form_holds_for_the_cases_of_the_study() -> None:
    assert (events(CASES[:1]).deviation.abs() < 4).all()
