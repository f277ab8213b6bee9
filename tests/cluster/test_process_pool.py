"""Workers beside this process: what ends may begin more, and all of it is given."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import wait
from multiprocessing.process import BaseProcess

import pytest

from streamrace.process import sigstop
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


def test_what_was_not_waited_for_is_ended() -> None:
    with ProcessPool(1) as pool:
        pool.begin(twice, range(1000))
    assert pool._workers() == []


def pauses(number: int) -> None:
    signal.pause()


def test_a_worker_that_is_gone_just_when_it_is_to_be_killed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the pool takes note of a worker's end, whenever it is."""
    before = {*multiprocessing.active_children()}
    there = multiprocessing.active_children
    gone: list[BaseProcess] = []

    def just_gone() -> list[BaseProcess]:
        found = [one for one in there() if one not in before]
        for one in found:
            one.kill()
            one.join()
        gone.extend(found)
        return found

    with ProcessPool(1) as pool:
        pool.begin(pauses, [1])
        monkeypatch.setattr(multiprocessing, "active_children", just_gone)
    assert [one.exitcode for one in gone] == [-signal.SIGKILL]


def test_a_worker_that_is_gone_just_when_it_was_seen_to_be_stopped_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_are_gone(looks: sigstop.Looks, processes: Iterable[int]) -> list[int]:
        found = [one for one in multiprocessing.active_children() if one.pid in {*processes}]
        for one in found:
            one.kill()
            one.join()
        return [one.pid for one in found if one.pid is not None]

    with ProcessPool(1) as pool:
        pool.begin(pauses, [1])
        monkeypatch.setattr(sigstop, "LOOK_S", 0.05)
        monkeypatch.setattr(sigstop.Looks, "stopped", all_are_gone)
        with pytest.raises(ScenarioError, match=r"was stopped \(SIGSTOP\)"):
            dict(pool.done())


def fails(number: int) -> int:
    raise ValueError(f"{number} cannot be had")


def test_what_failed_is_told_to_who_does_something_else_meanwhile() -> None:
    with ProcessPool(1) as pool:
        pool.look()
        pool.begin(fails, [7])
        wait([*pool._open])
        with pytest.raises(ValueError, match="7 cannot be had"):
            pool.look()


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
