"""Test files whose process has a simulated GPU: the tests of a file, or of a folder whose files share fixtures
(:mod:`tests.scheduling`), run in one pytest, in a fork of a warm process.

A process that has one keeps it, and what runs backward on it can no more be forked, so pytest's own process has none.
The pytest there is that of marked tests of a user (:mod:`streamrace.fuzz.testing.house`).
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import IO

import pytest

from streamrace.fuzz.testing import house as second
from streamrace.process.service import Channel, Service
from tests.scheduling import scope_of
from tests.warm import ROOT, Command, Warm, shell, with_simulated_gpu

FOLDERS = ("tests/fuzz/recorded", "tests/inputs", "tests/papers", "tests/runs", "tests/studies")
"""Folders of such files."""
FILES = (
    "tests/fuzz/test_all_orders.py",
    "tests/fuzz/test_commands.py",
    "tests/fuzz/test_sharing.py",
    "tests/fuzz/test_strategy.py",
    "tests/fuzz/test_textbook.py",
    "tests/fuzz/test_textbook_pct.py",
    "tests/fuzz/test_witness_of_many.py",
    "tests/quantizer/test_quantizer.py",
    "tests/replay/test_damaged.py",
    "tests/replay/test_footprints.py",
    "tests/replay/test_record.py",
    "tests/replay/test_replay.py",
    "tests/replay/test_sends.py",
    "tests/reports/test_study_pages.py",
    "tests/sharding/test_measured.py",
    "tests/sharding/test_checkpoints.py",
    "tests/sharding/test_engine_races.py",
    "tests/sharding/test_engine_timings.py",
    "tests/sharding/test_ring_races.py",
    "tests/sharding/test_ring_times.py",
    "tests/sharding/test_rings.py",
    "tests/sharding/test_strategies.py",
)
"""Single files of other folders."""

_INSIDE = "STREAMRACE_HOUSED"
_PASSED = ("hypothesis-profile", "hypothesis-seed", "timeout")


@functools.cache
def house() -> Warm:
    """The warm process: what is started there finds all that a rank of a scenario would import."""
    modules = ["pytest", "streamrace.fuzz.testing.housed", "streamrace.scenarios.program:preload"]
    warm = Warm(modules, environment=shell(), of=with_simulated_gpu())
    atexit.register(warm.close)
    return warm


class _Fork(Service):
    """This module, in a fork of the warm process."""

    def __init__(self, printed: IO[bytes]) -> None:
        connection, other = Pipe()
        command = Command(("-m", "tests.housed"), str(ROOT), {**os.environ, _INSIDE: "1"}, session=True)
        with other:
            self.pid = house().fork(command, (other.fileno(), printed.fileno(), printed.fileno()))
        self.channel = Channel(connection, self.pid)
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            self._status = house().wait(self.pid, 0)
        assert self._status is not None
        return self._status

    def close(self, patience_s: float = 0.0) -> None:
        """Its last test has taken down all fixtures, so there is nothing to wait for."""
        self.channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also what a process that crashed has left in its session
        self.wait()


class Tests(second.House):
    """The tests of one file or folder."""

    def __init__(self, config: pytest.Config, files: list[str]) -> None:
        given = {name: config.getoption(f"--{name}", None) for name in _PASSED}
        self._arguments = ["-n0", *(f"--{name}={value}" for name, value in given.items() if value is not None), *files]
        super().__init__(config, files)

    def start(self, printed: IO[bytes]) -> Service:
        return _Fork(printed)

    def arguments(self, config: pytest.Config) -> list[str]:
        return self._arguments


_open: dict[str, Tests] = {}  # by scope


def is_housed(item: pytest.Item) -> bool:
    """Does the test run in a process with a simulated GPU, and is this not it?"""
    if _INSIDE in os.environ:
        return False
    file = item.path.relative_to(ROOT)
    return file.as_posix() in FILES or file.parent.as_posix() in FOLDERS


def run(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run the test there, and report here."""
    scope = scope_of(item.nodeid)
    if scope not in _open:
        files = dict.fromkeys(str(one.path) for one in item.session.items if scope_of(one.nodeid) == scope)
        _open[scope] = Tests(item.config, [*files])
    second.run(item, _open[scope], nextitem, is_housed)
    if nextitem is None or scope_of(nextitem.nodeid) != scope:
        _open.pop(scope).close()


@atexit.register
def _end() -> None:
    """An interrupt leaves the process of its test."""
    for tests in _open.values():
        tests.close()


if __name__ == "__main__":
    from streamrace.fuzz.testing.housed import main

    channel = Channel.of(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    main(channel)
