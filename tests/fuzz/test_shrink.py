"""What is left of a failing timing: nothing that could be left out, and no execution twice."""

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.fuzz.shrink import identity, shrink
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.names import OperationName
from tests.examples import examples

US = 1000
LATE = [OperationDelay(OperationName(0, 1, 1, "forward", "", "mm", at), "long", 1024 * US) for at in range(1, 9)]


class Watched:
    """Runs a condition, and knows what it was asked."""

    def __init__(self, condition: Callable[[Sequence[Deviation]], bool]) -> None:
        self.condition = condition
        self.asked: list[object] = []

    def __call__(self, deviations: Sequence[Deviation]) -> bool:
        self.asked.append(identity(deviations))
        return self.condition(deviations)

    def total(self) -> int:
        assert len(set(self.asked)) == len(self.asked), "the same timing was executed twice"
        return len(self.asked)


def of(deviations: Sequence[Deviation]) -> dict[int, int]:
    """How late each operation is, by its number."""
    return {one.operation.occurrence: one.ns for one in deviations if isinstance(one, OperationDelay)}


def test_one_that_it_takes() -> None:
    run = Watched(lambda timing: of(timing).get(6, 0) >= 100 * US)
    shrunk = shrink(run, LATE)
    assert shrunk.deviations == (LATE[5]._replace(ns=128 * US),)
    assert shrunk.minimal
    assert shrunk.executions == run.total() < 25


def test_two_far_apart_with_amounts_of_their_own() -> None:
    run = Watched(lambda timing: of(timing).get(1, 0) >= 3 * US and of(timing).get(8, 0) >= 600 * US)
    shrunk = shrink(run, LATE)
    assert shrunk.deviations == (LATE[0]._replace(ns=4 * US), LATE[7])
    assert shrunk.minimal
    assert shrunk.executions == run.total()


def test_all_that_it_takes_stays() -> None:
    run = Watched(lambda timing: len(timing) == 8)
    shrunk = shrink(run, LATE)
    assert len(shrunk.deviations) == 8
    assert {one.ns for one in shrunk.deviations if isinstance(one, OperationDelay)} == {US}
    assert shrunk.minimal
    run.total()


def test_every_kind_has_a_smallest_amount() -> None:
    kinds = (LATE[0]._replace(ns=3000), Stretch("stream:compute", 1000), Jitter(640, 7))
    shrunk = shrink(lambda timing: len(timing) == 3, kinds)
    assert shrunk.deviations == (LATE[0]._replace(ns=1500), Stretch("stream:compute", 3), Jitter(1, 7))
    assert shrunk.minimal


def test_a_smaller_amount_may_make_another_superfluous() -> None:
    """Operation 1 very late hides what only operation 2 shows then."""

    def fails(timing: Sequence[Deviation]) -> bool:
        late = of(timing)
        return 0 < late.get(1, 0) < 512 * US or (late.get(1, 0) > 0 and late.get(2, 0) > 0)

    shrunk = shrink(fails, LATE[:2])
    assert shrunk.deviations == (LATE[0]._replace(ns=US),)
    assert shrunk.minimal


def test_what_fails_as_recorded_shrinks_to_nothing() -> None:
    shrunk = shrink(lambda timing: True, LATE)
    assert (shrunk.deviations, shrunk.executions, shrunk.minimal) == ((), 2, True)


def test_what_does_not_fail_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(lambda timing: False, LATE)


needed = st.lists(st.sets(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=3)


@examples(150)
@given(needed=needed, amount=st.integers(1, 1024), budget=st.integers(0, 60))
def test_any_cause_within_any_budget(needed: list[set[int]], amount: int, budget: int) -> None:
    """Each set of operations is a cause; one is left, and a budget that ends before gives what was reached."""

    def fails(timing: Sequence[Deviation]) -> bool:
        late = {at for at, ns in of(timing).items() if ns >= amount * US}
        return any(those <= late for those in needed)

    run = Watched(fails)
    shrunk = shrink(run, LATE, budget=budget)
    assert shrunk.executions == run.total() <= budget
    assert fails(shrunk.deviations)
    less = list(combinations(shrunk.deviations, len(shrunk.deviations) - 1))
    if shrunk.minimal:
        assert not any(map(fails, less))
    full = shrink(fails, LATE, budget=1000)
    assert full.minimal
    assert {one.operation.occurrence for one in full.deviations if isinstance(one, OperationDelay)} in needed
    assert all(ns // 2 < amount * US for ns in of(full.deviations).values())
