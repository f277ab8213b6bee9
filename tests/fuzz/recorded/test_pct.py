"""Probabilistic concurrency testing of DeepSpeed. Small programs and the bound: tests/fuzz/test_textbook_pct.py."""

from collections.abc import Callable
from random import Random

from streamrace.fuzz.search.pct import Pct, steps_of
from streamrace.fuzz.search.reversals import deviations_of
from streamrace.fuzz.subject import Subject
from streamrace.replay.host import HOST
from tests.fuzz.orders import kept


def test_schedules_of_deepspeed_keep_all_edges(subject: Callable[[str], Subject]) -> None:
    graph, steps = subject("none").replayer.graph, steps_of(subject("none"))
    for seed in range(20):
        assert kept(graph, Pct(3).draw(steps, Random(seed)).tolist())


def test_the_steps_are_those_after_the_settled_part(subject: Callable[[str], Subject]) -> None:
    deepspeed = subject("none")
    steps = steps_of(deepspeed)
    operations = len(deepspeed.operations)
    assert 2 * operations <= steps.count < 3 * operations  # a launch and an end, and arrivals of collectives
    assert {rank for rank, _ in steps.threads} == {0, 1, 2, 3}
    assert sum(stream == HOST for _, stream in steps.threads) == 4
    order = Pct(2).draw(steps, Random(0))
    assert steps.settled[order[: steps.settled.sum()]].all()


def test_a_failing_order_of_deepspeed_can_be_written_down_as_delays(subject: Callable[[str], Subject]) -> None:
    deepspeed = subject("none")
    failing = next(one for one in Pct(2).timings(deepspeed, 0) if one.verdict.diverged)
    assert failing.order is not None
    deviations = deviations_of(deepspeed, failing.order)
    assert deviations is not None
    assert len(deviations) <= 4
    assert deepspeed.run(deviations).diverged
