"""Workers beside this process: what ends may begin more, and all of it is given."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import wait

import psutil
import pytest

from streamrace.process.interrupts import concluding
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.process_pool import ProcessPool


def twice(number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def test_what_ends_may_begin_more_while_this_process_goes_on() -> None:
    found: dict[int, int] = {}
    with ProcessPool(2, behind=True) as pool:

        def more(number: int, result: tuple[int, int]) -> None:
            found[number] = result[0]
            if number < 40:
                pool.begin(twice, [result[0]], then=more)

        pool.begin(twice, [10, 11], then=more)
        given = dict(pool.done())
    assert found == {10: 20, 20: 40, 40: 80, 11: 22, 22: 44, 44: 88}
    assert {number: double for number, (double, _) in given.items()} == found
    assert os.getpid() not in {pid for _, pid in given.values()}


def pauses(number: int) -> None:
    signal.pause()


def test_what_was_not_waited_for_is_ended() -> None:
    before = psutil.Process().children()
    with ProcessPool(2) as pool:
        pool.begin(pauses, range(1000))
        assert len(psutil.Process().children()) == len(before) + 2
    assert psutil.Process().children() == before


def kills_itself(number: int) -> int:
    if number:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_is_gone_is_told_once_and_is_no_error_when_the_pool_ends() -> None:
    before = psutil.Process().children()
    with ProcessPool(2) as pool:
        pool.begin(kills_itself, [0, 1, 0, 0, 0])
        with pytest.raises(ScenarioError, match="a worker died while it rehearsed"):
            pool.finish()
    assert psutil.Process().children() == before


def fails(number: int) -> int:
    raise ValueError(f"{number} cannot be had")


def test_what_failed_is_told_to_who_does_something_else_meanwhile() -> None:
    with ProcessPool(1) as pool:
        pool.look()
        pool.begin(fails, [7])
        wait([*pool._open])
        with pytest.raises(ValueError, match="7 cannot be had") as told:
            pool.look()
    assert "in fails\n    raise ValueError" in told.value.__notes__[0]  # where it was raised in the worker


_early: list[signal.Signals] = []
os.register_at_fork(after_in_child=lambda: [os.kill(os.getpid(), number) for number in _early])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_is_asked_to_end_as_soon_as_it_is_there_ends(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command would have done with the signal is not for its workers, not even in their first moment."""
    monkeypatch.setattr(sys.modules[__name__], "_early", [number])
    with concluding(), ProcessPool(1) as pool:
        pool.begin(twice, [10])
        with pytest.raises(ScenarioError, match="a worker died"):
            dict(pool.done())
