"""Timings are drawn from all there is, and shrink towards the recorded order."""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from streamrace.device.costs import Costs
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.fuzz.strategy import draw_timing, stream_timings
from streamrace.fuzz.subject import Subject
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.names import Names, OperationName
from streamrace.replay.tokens import Token
from tests.examples import examples

US = 1000
OPERATIONS = [
    OperationName(rank, 1, 1, "forward", f"layer{at}" if at % 2 else "", "mm", 1 + at // 2)
    for rank in range(2)
    for at in range(1000)
]
GIVEN: dict[str, Any] = {"operations": OPERATIONS, "streams": ["compute", "side"], "links": ["nccl world"], "ranks": 2}


def drawn(count: int = 500, **options: Any) -> list[tuple[Deviation, ...]]:
    """So many timings as Hypothesis draws them."""
    timings: list[tuple[Deviation, ...]] = []

    def note(timing: tuple[Deviation, ...]) -> bool:
        timings.append(timing)
        return False

    with pytest.raises(Exception, match="note"):  # Hypothesis: nothing makes it true
        find(stream_timings(**options), note, settings=_settings(count), random=Random(1))
    return timings


def smallest(condition: Any, **options: Any) -> tuple[Deviation, ...]:
    return find(stream_timings(**options), condition, settings=_settings(5000), random=Random(1))


def _settings(count: int) -> settings:
    return settings(
        max_examples=count,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def test_all_zeros_are_the_recorded_order() -> None:
    assert smallest(lambda timing: True, **GIVEN) == ()
    assert drawn(1, **GIVEN) == [()]

    class Zeros(Random):
        def randint(self, a: int, b: int) -> int:
            return a

    class Known:
        operations, streams, links, world = OPERATIONS, ("compute",), (), 2

    known: Any = Known
    assert draw_timing(Zeros(), known) == ()


def test_everything_can_be_slow() -> None:
    timings = drawn(**GIVEN)
    deviations = [one for timing in timings for one in timing]
    stretched = {one.what for one in deviations if isinstance(one, Stretch)}
    assert stretched == {
        "stream:compute", "stream:side", "link:nccl world", "rank:0", "rank:1", "host", "host:0", "host:1",
    }  # fmt: skip
    delays = [one for one in deviations if isinstance(one, OperationDelay)]
    assert {one.how for one in delays} == {"late", "long"}
    assert {one.ns for one in delays} == {US << exponent for exponent in range(19)}
    assert any(isinstance(one, Jitter) for one in deviations)
    assert max(map(len, timings)) == 4


def test_no_operation_is_preferred_for_its_place() -> None:
    delays = [one.operation for timing in drawn(1000, **GIVEN) for one in timing if isinstance(one, OperationDelay)]
    quarters = [0, 0, 0, 0]
    for one in delays:
        quarters[OPERATIONS.index(one) * 4 // len(OPERATIONS)] += 1
    assert min(quarters) > len(delays) / 10
    assert 0.7 < sum(bool(one.parameter) for one in delays) / len(delays) < 0.9  # those that touch one: 4 of 5


@examples(300)
@given(timing=stream_timings(most=8, **GIVEN))
def test_a_timing_is_one_that_a_token_can_say(timing: tuple[Deviation, ...]) -> None:
    assert Token.parse(str(Token("hpz", {}, timing))).deviations == timing
    what = [one[:-1] for one in timing if not isinstance(one, Jitter)]
    assert len(set(what)) == len(what)  # of the same there is one


@examples(200)
@given(longest=st.integers(1, 10**6), strongest=st.integers(2, 10**5), data=st.data())
def test_amounts_keep_their_bounds(longest: int, strongest: int, data: st.DataObject) -> None:
    for one in data.draw(stream_timings(longest_us=longest, strongest=strongest, **GIVEN)):
        if isinstance(one, OperationDelay):
            assert US <= one.ns <= longest * US
        if isinstance(one, Stretch):
            assert 2 <= one.factor <= strongest


def test_bounds_that_no_timing_keeps_are_refused() -> None:
    for wrong, message in (
        ({"most": 0}, "most is from 1 to 64, not 0"),
        ({"most": 65}, "most is from 1 to 64, not 65"),
        ({"longest_us": 0}, "longest_us is from 1 to"),
        ({"strongest": 10**7}, "strongest is from 1 to"),
    ):
        with pytest.raises(ValueError, match=message):
            stream_timings(**wrong)  # type: ignore[arg-type]


# -- shrinking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 777, 1999])
def test_one_slow_operation_shrinks_to_itself(place: int) -> None:
    culprit = OPERATIONS[place]

    def late(timing: tuple[Deviation, ...]) -> bool:
        return any(
            isinstance(one, OperationDelay) and one.operation == culprit and one.ns >= 100 * US for one in timing
        )

    few = {**GIVEN, "operations": OPERATIONS[max(0, place - 40) : place + 40]}  # or drawing it takes long
    (deviation,) = smallest(late, **few)
    assert deviation == OperationDelay(culprit, "long", 128 * US)


def test_two_that_it_takes_shrink_to_two() -> None:
    def both(timing: tuple[Deviation, ...]) -> bool:
        slow = {one.what: one.factor for one in timing if isinstance(one, Stretch)}
        late = sum(one.ns for one in timing if isinstance(one, OperationDelay))
        return slow.get("stream:side", 1) >= 4 and late >= 5 * US

    found = smallest(both, **GIVEN)
    assert sorted(found, key=str) == [OperationDelay(OPERATIONS[0], "long", 8 * US), Stretch("stream:side", 4)]


def test_fewer_come_before_smaller_and_smaller_before_earlier() -> None:
    def either(timing: tuple[Deviation, ...]) -> bool:
        delays = {one.operation: one.ns for one in timing if isinstance(one, OperationDelay)}
        first, second = (delays.get(OPERATIONS[at], 0) for at in (1, 3))
        return first >= 512 * US or second >= 64 * US or (first >= 2 * US and second >= 2 * US)

    assert smallest(either, **{**GIVEN, "operations": OPERATIONS[:8]}) == (
        OperationDelay(OPERATIONS[3], "long", 64 * US),
    )


# -- drawing otherwise ---------------------------------------------------------------------------------------


def test_a_plain_generator_draws_the_same_kinds(small: Subject) -> None:
    random = Random(3)
    timings = [draw_timing(random, small) for _ in range(500)]
    again = Random(3)
    assert timings == [draw_timing(again, small) for _ in range(500)]
    deviations = [one for timing in timings for one in timing]
    assert {one.operation for one in deviations if isinstance(one, OperationDelay)} == set(small.operations)
    assert {type(one) for one in deviations} == {OperationDelay, Stretch, Jitter}
    assert {one.what for one in deviations if isinstance(one, Stretch)} == {
        "stream:compute", "stream:side", "rank:0", "host", "host:0",
    }  # fmt: skip


def test_a_live_test_needs_no_subject() -> None:
    """Such a timing is one to run with: see ``timing=`` of :func:`streamrace.scenarios.program.run`."""
    base = DeviceTiming((Costs(), Costs()), (0, 0), HardwareTiming(load_profile("a100-100gbps"), (0, 0)))
    timings = drawn(200, streams=["compute"], ranks=2)
    for timing in timings:
        base.deviated(timing, {}, Names()).live()
    assert {type(one) for timing in timings for one in timing} == {Stretch, Jitter}
    bare = drawn(200)
    assert {one.what for timing in bare for one in timing if isinstance(one, Stretch)} == {"host"}
    assert any(isinstance(one, Jitter) for timing in bare for one in timing)
