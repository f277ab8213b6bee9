"""The lower bound of memory against communication: the plane that all ways to shard lie on, and what none beats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.studies.pareto import cases, front, study
from papers.studies.trade import (
    TradedStep,
    all_27,
    bytes_sent,
    held,
    least_crossing,
    least_seconds,
    least_sent,
)
from streamrace.device.hardware import load_profile
from streamrace.scenarios.sharding.formulas import Size, communication, exchanges, memory, profile_rates, sent
from streamrace.scenarios.sharding.schemes import HPZ, Cluster, RingPlace, Scheme, schemes
from streamrace.scenarios.sharding.strategy import Level, ShardingError, legal
from tests.examples import examples

LETTERS = ("GGG", "IGG", "IIG", "NGG", "NIG", "NNG")  # ZeRO-3, PaRO's own three and ZeRO-2, ZeRO-1


@st.composite
def steps(draw: st.DrawFn) -> TradedStep:
    group = draw(st.integers(1, 16))
    cluster = Cluster(group * draw(st.integers(1, 32)), group, group)
    whole = draw(st.integers(1, 10**12))
    trained = max(1, whole // draw(st.sampled_from([1, 1, 2, 16, 1000])))
    return TradedStep(Size(whole, trained), cluster, draw(st.integers(1, 64)), draw(st.sampled_from(["bf16", "fp32"])))


def close(one: float, other: float, of: float) -> bool:
    """Equal but for rounding of sums of the size ``of``."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9 * of)


def measured(step: TradedStep, one: Scheme) -> tuple[float, float, float]:
    """Memory, bytes that a GPU sends, and bytes that leave a group, by the closed forms that the simulator counts."""
    found = exchanges(one, step.size, step.cluster, accumulation=step.accumulation, precision=step.precision)
    total = sent(found, step.cluster)
    takes = memory(one, step.size, step.cluster, precision=step.precision).total
    return takes, total.within + total.between, total.of_node(step.cluster.gpus).crossing


@examples(200)
@given(step=steps())
def test_all_14_send_what_the_plane_says(step: TradedStep) -> None:
    of = 2 * step.accumulation * step.whole
    for one in legal():
        levels = (one.parameters, one.gradients, one.state)
        takes, sends, _ = measured(step, Scheme(one))
        assert close(sends, bytes_sent(step, levels), of)
        assert math.isclose(takes, held(step, levels), rel_tol=1e-12)


@examples(200)
@given(step=steps())
def test_no_way_to_shard_beats_the_bound(step: TradedStep) -> None:
    of = 3 * step.accumulation * step.whole * step.cluster.group
    for one in schemes():
        takes, sends, crosses = measured(step, one)
        assert sends >= least_sent(step, takes) or close(sends, least_sent(step, takes), of)
        assert crosses >= least_crossing(step, takes) or close(crosses, least_crossing(step, takes), of)


@examples(100)
@given(step=steps())
def test_nor_do_the_13_that_are_not_legal_which_are_dominated_by_one_that_is(step: TradedStep) -> None:
    runs = {(one.parameters, one.gradients, one.state) for one in legal()}
    assert len(all_27()) == 27 and len(runs) == 14
    for parameters, gradients, state in set(all_27()) - runs:
        finer = (parameters, gradients, max(parameters, gradients))
        assert finer in runs
        assert bytes_sent(step, finer) == bytes_sent(step, (parameters, gradients, state))
        assert held(step, finer) <= held(step, (parameters, gradients, state))
        assert bytes_sent(step, finer) >= least_sent(step, held(step, finer)) * (1 - 1e-9) - 1e-9 * step.whole


@examples(50)
@given(step=steps(), share=st.floats(0, 1), more=st.floats(0, 1))
def test_more_memory_never_costs_more(step: TradedStep, share: float, more: float) -> None:
    rest = step.whole + step.mine
    small, large = (step.least_memory + part * rest for part in sorted((share, more)))
    slack = 1e-9 * step.accumulation * step.whole * step.cluster.group
    assert least_sent(step, large) <= least_sent(step, small) + slack
    assert least_crossing(step, large) <= least_crossing(step, small) + slack


def test_the_bound_is_reached_where_it_has_its_corners() -> None:
    step = TradedStep(Size(65e9, 65e9), Cluster(32, 8, 8), 10)
    for letters in ("GGG", "IGG", "NGG", "NIG", "NNG"):
        levels = tuple(Level[letter] for letter in letters)
        assert math.isclose(bytes_sent(step, levels), least_sent(step, held(step, levels)), rel_tol=1e-12)
    # By hand: all-reduce of V, twice 31/32 of 130 GB.
    assert math.isclose(bytes_sent(step, (Level.N, Level.N, Level.G)), 2 * 31 / 32 * 130e9)


def test_with_everything_trained_the_front_is_zero_and_what_paro_chose() -> None:
    """Ranked by what a GPU sends: PaRO's IGG, IIG and NIG, and ZeRO-1 to 3; neither DDP, nor MiCS, nor hpZ."""
    frame = study(cases(trained=["all"]))
    for _, rows in frame.groupby("model"):
        assert set(rows[rows.front_sent].strategy) == set(LETTERS)
        assert set(rows[rows.front_communication_s].strategy) == {"GGG", "IGG", "IIG", "NIG", "NII", "NNG", "NNI"}
    assert (frame.communication_s >= frame.least_communication_s * (1 - 1e-9)).all()


@pytest.mark.parametrize("profile", ["dgx-a100-roce", "a100-12.5gbps", "h100", "v100"])
def test_no_time_is_shorter_than_the_bound(profile: str) -> None:
    machine = load_profile(profile)
    for group in (2, 4, 8):
        step = TradedStep(Size(7e9, 7e9), Cluster(32, group, 8), 4)
        for one in schemes():
            found = exchanges(one, step.size, step.cluster, accumulation=4)
            seconds = communication(found, step.cluster, profile_rates(step.cluster, machine))
            least = least_seconds(step, memory(one, step.size, step.cluster).total, machine)
            assert seconds >= least * (1 - 1e-9)


def test_too_little_memory_and_a_group_over_nodes_are_refused() -> None:
    step = TradedStep(Size(7e9, 7e9), Cluster(32, 8, 8), 10)
    with pytest.raises(ShardingError, match=r"hold no 32th of the model states: give 3\.5 or more"):
        least_sent(step, 1e9)
    wide = TradedStep(Size(7e9, 7e9), Cluster(32, 16, 8), 10)
    with pytest.raises(ShardingError, match="no network of its own"):
        least_seconds(wide, 1e12, load_profile("dgx-a100-roce"))
    assert wide.cluster.ring(RingPlace.WITHIN).nodes == 2


def test_equals_do_not_dominate_each_other() -> None:
    assert front([1, 1, 2, 2], [5, 5, 4, 5]) == [True, True, True, False]
    assert HPZ in schemes()
