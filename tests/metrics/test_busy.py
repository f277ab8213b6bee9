"""Where the time of a step goes, against counting nanosecond by nanosecond."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrace.metrics import BusyMetrics, GroupTime, StepTime
from streamrace.trace.records import End, HostWait, Phase, StreamName, TraceRecord
from tests.examples import examples
from tests.metrics.trace import begin, collective, launch

COMPUTE, GATHER, WORLD, NODE = range(4)
NAMES = [StreamName(at, name) for at, name in enumerate(["compute", "all-gather", "nccl world", "nccl hpz"])]


def steps_of(*records: TraceRecord) -> tuple[StepTime, ...]:
    metric = BusyMetrics()
    metric.feed([begin(), *NAMES, *records])
    return metric.result().steps


def test_where_the_time_goes() -> None:
    """compute ---####----####   world --######------   node ----###-------: what they share, and what nothing hides."""
    (step,) = steps_of(
        Phase(1, 1, "forward"),
        launch(COMPUTE, 103, 107, issued=100),
        launch(WORLD, 102, 108),
        launch(NODE, 106, 110),
        launch(COMPUTE, 111, 115),
        launch(GATHER, 109, 111),
        HostWait(0, "synchronize", 0, 115, 104),
        HostWait(0, "query", 0, 116, 115),
        End(120),
    )
    assert step == StepTime(
        step=1,
        start=100,
        time=20,
        compute=8,
        communication=8,
        exposed=4,  # 102, and 107 to 110
        other=1,  # 110
        idle=7,  # 100, 101 and 115 to 120
        blocked=11,
        groups=(GroupTime("nccl world", 6, 2), GroupTime("nccl hpz", 4, 3)),
    )
    assert step.compute + step.exposed + step.other + step.idle == step.time


def test_a_collective_is_told_by_its_link_whatever_stream_it_is_on() -> None:
    """compute ##AA#   reduce -----BB, A and B on one link: NCCL puts a collective on the current stream."""
    (step,) = steps_of(
        collective("broadcast", 0, 8, stream=COMPUTE, time=(90, 95), link="nccl 0,1"),  # before the group had its name
        Phase(1, 1, "forward"),
        launch(COMPUTE, 100, 102),
        collective("all_reduce", 0, 8, stream=COMPUTE, time=(102, 104), link="nccl world"),
        launch(COMPUTE, 104, 105),
        collective("reduce_scatter", 0, 8, stream=GATHER, time=(105, 107), link="nccl world"),
        End(108),
    )
    assert (step.time, step.compute, step.communication, step.exposed, step.other, step.idle) == (8, 3, 4, 4, 0, 1)
    assert step.groups == (GroupTime("nccl world", 4, 4),)


def test_a_step_lasts_until_work_of_the_next_is_issued_and_its_own_has_ended() -> None:
    first, second = steps_of(
        Phase(0, 0, "init"),
        launch(COMPUTE, 0, 50),
        Phase(1, 1, "forward"),
        Phase(1, 1, "backward"),
        launch(COMPUTE, 60, 90, issued=55),
        Phase(2, 1, "forward"),
        launch(COMPUTE, 96, 100, issued=95),
        End(110),
    )
    assert (first.step, first.start, first.time, first.compute) == (1, 55, 40, 30)
    assert (second.step, second.start, second.time, second.compute) == (2, 95, 15, 4)


def test_a_host_that_never_waits_does_not_make_steps_short() -> None:
    """It has issued all three steps before the first has run: each lasts as long as the streams work on it."""
    steps = steps_of(
        Phase(1, 1, "forward"),
        launch(COMPUTE, 10, 30, issued=5),
        launch(GATHER, 12, 33, issued=6),
        Phase(2, 1, "forward"),
        launch(COMPUTE, 30, 50, issued=7),
        Phase(3, 1, "forward"),
        launch(COMPUTE, 50, 70, issued=8),
        End(70),
    )
    assert [(step.start, step.time, step.compute) for step in steps] == [(5, 28, 23), (33, 17, 17), (50, 20, 20)]


def test_streams_of_one_name_are_one_and_the_last_name_counts() -> None:
    (step,) = steps_of(
        Phase(1, 1, "forward"),
        launch(WORLD, 0, 10),
        launch(NODE, 5, 20),
        StreamName(NODE, "nccl world"),
        End(20),
    )
    assert step.groups == (GroupTime("nccl world", 20, 20),)


def test_without_an_end_the_last_work_is_the_end() -> None:
    (step,) = steps_of(Phase(1, 1, "forward"), launch(COMPUTE, 0, 10), launch(COMPUTE, -1, -1))
    assert (step.time, step.compute, step.idle) == (10, 10, 0)


def test_a_trace_without_steps() -> None:
    assert steps_of(Phase(0, 0, "init"), launch(COMPUTE, 0, 10), End(10)) == ()


def test_the_account_is_json() -> None:
    metric = BusyMetrics()
    metric.feed([begin(), *NAMES, Phase(1, 1, "forward"), launch(WORLD, 0, 10), End(12)])
    data = json.loads(json.dumps(metric.result().as_dict()))
    assert data["steps"][0]["groups"] == [{"name": "nccl world", "busy": 10, "exposed": 10}]


# -- nanosecond by nanosecond -----------------------------------------------------------------------

DOES = st.one_of(
    st.tuples(st.just("work"), st.integers(0, 3), st.integers(0, 5), st.integers(0, 6), st.integers(0, 3)),
    st.tuples(st.just("work"), st.integers(0, 3), st.integers(0, 5), st.integers(0, 6), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from(["read", "synchronize", "query"]), st.integers(0, 5)),
    st.tuples(st.just("step")),
)


@examples(500)
@given(program=st.lists(DOES, max_size=30), ends=st.integers(0, 20))
def test_any_course(program: list[Any], ends: int) -> None:
    now, step, free = 0, 0, [0, 0, 0, 0]
    records: list[TraceRecord] = [Phase(0, 0, "init")]
    running: dict[int, set[int]] = {}
    blocked: set[int] = set()
    begun: dict[int, int] = {}
    for does in program:
        match does:
            case ("work", stream, late, lasts, host):
                now += host
                if step:
                    begun.setdefault(step, max(now, *free))  # free: when each stream's work ends, up to here
                start = max(now, free[stream]) + late
                end = free[stream] = start + lasts
                records.append(launch(stream, start, end, issued=now))
                for at in range(start, end):
                    running.setdefault(at, set()).add(stream)
            case ("wait", how, lasts):
                records.append(HostWait(0, how, 0, now + lasts, now))
                blocked |= set(range(now, now + lasts)) if how != "query" else set()
                now += lasts
            case _:
                step += 1
                records.append(Phase(step, 1, "forward"))
    end = max(now, *free) + ends
    records.append(End(end))
    found = steps_of(*records)
    bounds = [*begun.values(), end]
    assert [(one.step, one.start, one.time) for one in found] == [
        (step, start, bounds[at + 1] - start) for at, (step, start) in enumerate(begun.items())
    ]
    for at, one in enumerate(found):
        each = [(moment, running.get(moment, set())) for moment in range(bounds[at], bounds[at + 1])]
        assert one.compute == sum(COMPUTE in on for _, on in each)
        assert one.communication == sum(bool(on & {WORLD, NODE}) for _, on in each)
        assert one.exposed == sum(bool(on & {WORLD, NODE}) and COMPUTE not in on for _, on in each)
        assert one.other == sum(on == {GATHER} for _, on in each)
        assert one.idle == sum(not on for _, on in each)
        assert one.blocked == sum(moment in blocked for moment, _ in each)
        for group in one.groups:
            stream = {"nccl world": WORLD, "nccl hpz": NODE}[group.name]
            assert group.busy == sum(stream in on for _, on in each)
            assert group.exposed == sum(stream in on and COMPUTE not in on for _, on in each)
