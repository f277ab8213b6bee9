"""Whatever forks: what was left as garbage before is never taken apart in the forks, and no Ctrl-C is lost.

Threads do not survive a fork. A process group of gloo that is destroyed there waits for threads that are gone: the rank
dies, or stands still.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import pytest

from streamrace.device.ranks.cluster import Rank, RankFailed, run_ranks
from streamrace.fuzz.campaign import Share, Trial
from streamrace.fuzz.engines import local
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.process import forks
from streamrace.studies.process_pool import side_by_side


class Grave:
    """Garbage that only a collector finds. Writes down which processes it was destroyed in."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._itself = self

    def __del__(self) -> None:
        with self._file.open("a") as stream:
            stream.write(f"{os.getpid()}\n")


def collect(_: object) -> int:
    gc.collect()
    return os.getpid()


class Pid(NamedTuple):
    pid: int


def ranks(folder: Path, _: pytest.MonkeyPatch) -> list[int]:
    pids: list[int] = []

    def rank(me: Rank) -> None:
        me.report(Pid(collect(me)))

    run_ranks(2, rank, folder=folder, kinds=(Pid,), receive=lambda _, message: pids.append(message.pid))
    return pids


def workers_of_a_campaign(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    def explore(subject: Subject, share: Share, tell: Callable[[Any], None]) -> None:
        tell(Trial(collect(share), (), ReplayVerdict((), None, 0, 0.0, False, None)))

    monkeypatch.setattr(local, "explore", explore)
    tried = local.local(cast(Subject, None))([Share(1, 1, None), Share(2, 1, None)])
    return [one.number for _, one in tried]


def workers_of_a_study(_: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return [pid for _, pid in side_by_side(collect, [1, 2], workers=2)]


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a program that has not frozen anything, as the tests' own process has."""
    monkeypatch.setattr(forks, "_for_good", [])
    gc.unfreeze()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


each_fork = pytest.mark.parametrize("fork", [ranks, workers_of_a_campaign, workers_of_a_study])


@pytest.mark.usefixtures("uncollected")
@each_fork
def test_forks_leave_the_garbage_they_inherit(
    fork: Callable[[Path, pytest.MonkeyPatch], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "destroyed-in"
    Grave(file)
    assert len(fork(tmp_path / "ranks", monkeypatch)) == 2
    assert not file.exists()
    gc.collect()
    assert file.read_text() == f"{os.getpid()}\n"


@pytest.mark.usefixtures("ctrl_c_while_forking")
@each_fork
def test_the_interrupt_of_a_person_is_not_lost(
    fork: Callable[[Path, pytest.MonkeyPatch], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = psutil.Process().children()  # other tests' browser may be among them
    with pytest.raises(KeyboardInterrupt):
        fork(tmp_path / "ranks", monkeypatch)
    assert psutil.Process().children() == before


def fails(rank: int) -> None:
    raise RankFailed(rank, "died", status=7, log=Path("rank.log"))


def test_a_rank_that_fails_in_a_worker_is_told_as_it_is() -> None:
    with pytest.raises(RankFailed, match=r"rank 3 died \(its output: rank.log\)") as told:
        list(side_by_side(fails, [3]))
    assert (told.value.rank, told.value.status, told.value.log) == (3, 7, Path("rank.log"))
