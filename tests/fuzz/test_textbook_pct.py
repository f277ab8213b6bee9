"""Probabilistic concurrency testing: schedules keep all order, and find bugs as often as the paper promises."""

from functools import cache
from itertools import islice, permutations, product
from math import comb
from random import Random

import pytest

from streamrace.fuzz.search.pct import Pct, ScheduleSteps, steps_of
from streamrace.fuzz.search.reversals import deviations_of
from streamrace.fuzz.subject import Subject
from streamrace.replay.host import HOST
from streamrace.replay.record import record
from streamrace.scenarios.textbook import TEXTBOOK
from tests.fuzz.orders import kept

_SEEDS = 600
_DOUBT = 1e-4  # a search that keeps the bound fails its test with at most this probability, for given seeds never


@cache
def _subject(name: str) -> Subject:
    return Subject(record(TEXTBOOK[name].program))


def _tail(hits: int, of: int, probability: float) -> float:
    """The probability of so few hits or fewer: exact, a binomial distribution."""
    return sum(comb(of, k) * probability**k * (1 - probability) ** (of - k) for k in range(hits + 1))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_schedules_of_small_programs_keep_all_edges(name: str, depth: int) -> None:
    graph = _subject(name).replayer.graph
    steps = ScheduleSteps(graph)
    for seed in range(50):
        assert kept(graph, Pct(depth).draw(steps, Random(seed)).tolist())


def test_the_thread_of_highest_priority_goes_first() -> None:
    small = _subject("missing-wait")
    steps = steps_of(small)
    assert steps.threads == ((0, HOST), (0, 0), (0, 1))
    assert not small.judged(small.replayer.run_order(steps.order([3, 2, 1], []))).diverged
    assert small.judged(small.replayer.run_order(steps.order([3, 1, 2], []))).diverged


def test_at_a_change_point_the_thread_falls_behind_all_others() -> None:
    """The host issues everything, then 'compute' stops before its last step, and the reader comes first."""
    small = _subject("swapped-weights")
    steps = steps_of(small)
    launches = sum(effect.what == "kernel" for effect in small.replayer.graph.effects)
    assert steps.count == 2 * launches
    found = []
    for change in range(steps.count):
        order = steps.order([4, 3, 2], [change])
        if small.judged(small.replayer.run_order(order)).diverged:
            found.append(change)
    swap_back = launches - 2  # before it: all launches, and all kernels of 'compute' but the last
    assert found == [launches + swap_back - 1, launches + swap_back]


@pytest.mark.parametrize("name", TEXTBOOK)
def test_of_all_schedules_as_many_find_the_bug_as_the_bound_says(name: str) -> None:
    """Exact: every way to draw priorities and change points, each as likely as any other."""
    small = _subject(name)
    steps, depth = steps_of(small), TEXTBOOK[name].depth
    threads = len(steps.threads)
    drawn = [
        small.judged(small.replayer.run_order(steps.order(priorities, changes))).diverged
        for priorities in permutations(range(depth, depth + threads))
        for changes in product(range(steps.count), repeat=depth - 1)
    ]
    assert sum(drawn) * threads * steps.count ** (depth - 1) >= len(drawn)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_seeds_find_the_bug_as_often_as_the_bound_says(name: str) -> None:
    small = _subject(name)
    steps = steps_of(small)
    depth = TEXTBOOK[name].depth
    bound = 1 / (len(steps.threads) * steps.count ** (depth - 1))
    hits = sum(next(Pct(depth).timings(small, seed)).verdict.diverged for seed in range(_SEEDS))
    assert _tail(hits, _SEEDS, bound) >= _DOUBT


@pytest.mark.parametrize("name", [name for name, one in TEXTBOOK.items() if one.depth == 2])
def test_depth_1_does_not_find_a_bug_of_depth_2(name: str) -> None:
    assert not any(one.verdict.diverged for one in islice(Pct(1).timings(_subject(name), 0), 200))


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    assert _tail(1, 3, 0.5) == 0.5
    assert _tail(0, 600, 1 / 3) < _DOUBT < _tail(0, 600, 1 / 100)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_a_failing_order_can_be_written_down_as_delays(name: str) -> None:
    small = _subject(name)
    failing = [one for one in islice(Pct(2).timings(small, 1), 100) if one.verdict.diverged]
    assert failing
    for one in failing:
        assert one.order is not None
        deviations = deviations_of(small, one.order)
        assert deviations is not None
        assert len(deviations) <= 2
        assert small.run(deviations).diverged


def test_an_order_that_does_no_harm_has_no_delays_to_write_down() -> None:
    small = _subject("missing-wait")
    assert deviations_of(small, small.replayer.graph.issue_order()) is None
