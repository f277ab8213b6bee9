"""Two programs of one launch race as two streams do: unless an atomic operation orders them, whatever their indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from streamrace.detectors.grid.judge import GridFault, GridJudge
from streamrace.detectors.grid.shadow import SCALAR


class Stored(NamedTuple):
    """What is stored, as the device tells it."""

    bits: np.ndarray
    present: Callable[[], np.ndarray]


class Launch:
    """A launch of four programs on two tensors of 64 numbers of four bytes, at addresses 4096 and 8192."""

    def __init__(self) -> None:
        self.judge = GridJudge([(4096, 4096 + 256, 4), (8192, 8192 + 256, 4)], 4)
        self.memory: dict[int, int] = {}

    def program(self, number: int) -> None:
        self.judge.begin(number)

    def reads(self, *elements: int, line: int = 1, at: Sequence[int] = (), size: int = 4) -> None:
        addresses, positions = self._places(elements, at)
        self.judge.access(addresses, positions, size, ("k.py", line, "kernel"), reads=True, writes=False)

    def writes(self, *elements: int, line: int = 2, at: Sequence[int] = (), values: Sequence[int] = ()) -> None:
        addresses, positions = self._places(elements, at)
        bits = np.array(values or [100 * self.judge._order.program + one for one in elements])
        stored = Stored(bits, lambda: np.array([self.memory.get(int(one), 0) for one in addresses]))
        self.judge.access(addresses, positions, 4, ("k.py", line, "kernel"), reads=False, writes=True, stored=stored)
        self.memory.update(zip(addresses.tolist(), bits.tolist(), strict=True))

    def atomic(self, element: int, sem: str = "acq_rel", line: int = 3) -> None:
        addresses, positions = self._places((element,), (SCALAR,))
        self.judge.synchronize(addresses, acquires="acq" in sem, releases="rel" in sem.split("_"))
        self.judge.access(addresses, positions, 4, ("k.py", line, "kernel"), reads=True, writes=True, atomic=True)

    @staticmethod
    def _places(elements: Sequence[int], at: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([4096 + 4 * one for one in elements], np.uint64), np.array(at or range(len(elements)))

    @property
    def kinds(self) -> list[tuple[str, int, int]]:
        return [(one.kind, one.first[1], one.second[1]) for one in self.judge.faults()]


@pytest.fixture
def launch() -> Launch:
    return Launch()


def test_programs_that_touch_disjoint_elements_are_clean(launch: Launch) -> None:
    for number in range(4):
        launch.program(number)
        launch.reads(number)
        launch.writes(number)
    assert launch.kinds == []


def test_two_stores_to_one_element_race_and_a_store_that_changes_nothing_does_not(launch: Launch) -> None:
    launch.program(0)
    launch.writes(0, 1, 2)
    launch.program(1)
    launch.writes(2, 3, line=5, values=[2, 9])  # the value that is there
    assert launch.kinds == []
    launch.program(2)
    launch.writes(3, line=6)
    assert launch.judge.faults() == [
        GridFault("write-write", "write", ("k.py", 5, "kernel"), ("k.py", 6, "kernel"), (1, 2))
    ]


def test_what_a_program_reads_another_may_not_write_in_either_order_of_indices(launch: Launch) -> None:
    launch.program(0)
    launch.reads(1)
    launch.program(1)
    launch.writes(1)
    launch.program(2)
    launch.reads(1, line=7)
    assert launch.kinds == [("read-write", 1, 2), ("write-read", 2, 7)]


def test_several_readers_race_with_a_writer_also_if_it_was_the_last_one_to_read(launch: Launch) -> None:
    for number in (0, 1):
        launch.program(number)
        launch.reads(5)
    launch.writes(5)
    assert launch.kinds == [("read-write", 1, 2)]


def test_atomic_operations_do_not_race_with_each_other_and_do_with_others(launch: Launch) -> None:
    for number in range(3):
        launch.program(number)
        launch.atomic(0, "relaxed")
    assert launch.kinds == []
    launch.program(3)
    launch.reads(0)
    assert launch.kinds == [("write-read", 3, 1)]


@pytest.mark.parametrize(("sem", "races"), [("acq_rel", 0), ("relaxed", 1), ("rel", 1), ("acq", 1)])
def test_the_last_to_arrive_at_a_counter_may_read_what_the_others_wrote_if_the_counter_orders(
    launch: Launch, sem: str, races: int
) -> None:
    for number in range(3):
        launch.program(number)
        launch.writes(number, at=[number])
        launch.atomic(40, sem)
    launch.reads(0, 1, 2, line=8)
    assert len(launch.kinds) == races


def test_what_a_program_does_after_its_release_is_not_ordered_by_it(launch: Launch) -> None:
    launch.program(0)
    launch.atomic(40)
    launch.writes(0)
    launch.program(1)
    launch.atomic(40)
    launch.reads(0, line=9)
    assert launch.kinds == [("write-read", 2, 9)]


def test_order_passes_on_through_a_chain_of_programs(launch: Launch) -> None:
    launch.program(0)
    launch.writes(0)
    launch.atomic(40)
    launch.program(1)
    launch.atomic(40)
    launch.atomic(41)
    launch.program(2)
    launch.atomic(41)
    launch.writes(0, line=9)
    assert launch.kinds == []


def test_an_atomic_operation_on_many_addresses_orders_more_than_it_does_and_invents_no_race(launch: Launch) -> None:
    every = np.arange(4096, 4096 + 4 * 40, dtype=np.uint64)
    launch.program(0)
    launch.writes(60)
    launch.judge.synchronize(every, acquires=True, releases=True)
    launch.program(1)
    launch.atomic(41)
    launch.reads(60)
    assert launch.kinds == []


def test_one_store_with_two_values_for_an_element_is_told_and_one_with_one_value_is_not(launch: Launch) -> None:
    launch.program(0)
    launch.writes(7, 7, 8, values=[1, 1, 2])
    assert launch.kinds == []
    launch.writes(7, 7, 8, line=4, values=[1, 3, 2])
    assert launch.kinds == [("repeated", 0, 4)]


def test_threads_of_a_program_need_a_barrier_to_see_each_others_elements(launch: Launch) -> None:
    launch.program(0)
    launch.writes(0, 1, 2, 3)
    launch.reads(0, 1, 2, 3, line=3)  # each its own
    launch.judge.barrier()
    launch.reads(3, 2, 1, 0, line=4)
    assert launch.kinds == []
    launch.writes(0, line=5, at=[SCALAR])
    assert launch.kinds == [("hazard", 4, 5)]
    launch.reads(1, 2, 3, 0, line=6)
    assert launch.kinds == [("hazard", 4, 5), ("hazard", 5, 6)]
    launch.judge.barrier()
    launch.writes(4, 5, line=8)
    launch.writes(5, 4, line=9, values=[50, 40])  # which of the two stays?
    assert launch.kinds[2:] == [("hazard", 8, 9)]
    launch.program(1)
    launch.reads(9, 10, line=7)
    assert len(launch.kinds) == 3


@pytest.mark.parametrize("further", [[], [1]])
def test_an_element_that_all_threads_read_and_one_writes_is_a_hazard_if_another_writes_anything(
    launch: Launch, further: list[int]
) -> None:
    """As a counter of steps that a kernel increments: its other threads read it late, but write nothing from it."""
    launch.program(0)
    launch.reads(0, at=[SCALAR])
    launch.writes(0, line=4)
    if further:
        launch.writes(8, at=further, line=5)
    assert launch.kinds == ([("hazard", 1, 4)] if further else [])


def test_elements_of_another_size_are_judged_if_they_are_whole_and_else_left_out(launch: Launch) -> None:
    launch.program(0)
    launch.writes(0, 1)
    launch.program(1)
    launch.reads(0, size=8)
    assert launch.kinds == [("write-read", 2, 1)]
    parts = Launch()
    parts.program(0)
    parts.reads(0, size=2)
    parts.program(1)
    parts.writes(0)
    assert parts.kinds == []


def test_memory_of_many_pages_is_judged_as_that_of_one() -> None:
    judge = GridJudge([(0, 1 << 22, 4)], 2)
    wide = np.arange(0, 1 << 20, 4096, dtype=np.uint64)
    for number in (0, 1):
        judge.begin(number)
        judge.access(wide, np.arange(len(wide)), 4, ("k.py", number, "k"), reads=not number, writes=bool(number))
    assert [one.kind for one in judge.faults()] == ["read-write"]
