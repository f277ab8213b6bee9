"""Workers beside this process: what ends may begin more, and all of it is given."""

from __future__ import annotations

import os
from concurrent.futures import wait

import pytest

from studies.crew import Crew


def twice(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def test_what_ends_may_begin_more_while_this_process_goes_on() -> None:
    found: dict[int, int] = {}
    with Crew(2, behind=True) as crew:

        def more(number: int, result: tuple[int, int]) -> None:
            found[number] = result[0]
            if number < 40:
                crew.begin(twice, [result[0]], then=more)

        crew.begin(twice, [10, 11], then=more)
        given = dict(crew.done())
    assert found == {10: 20, 20: 40, 40: 80, 11: 22, 22: 44, 44: 88}
    assert {number: double for number, (double, _) in given.items()} == found
    assert os.getpid() not in {pid for _, pid in given.values()}


def test_what_was_not_waited_for_is_ended() -> None:
    with Crew(1) as crew:
        crew.begin(twice, range(1000))
    assert list(crew._pids()) == []


def fails(number: int) -> int:
    raise ValueError(f"{number} cannot be had")


def test_what_failed_is_told_to_who_does_something_else_meanwhile() -> None:
    with Crew(1) as crew:
        crew.look()
        crew.begin(fails, [7])
        wait([*crew._open])
        with pytest.raises(ValueError, match="7 cannot be had"):
            crew.look()
