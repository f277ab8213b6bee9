"""Test files whose process has a simulated GPU: the tests of a file, or of a folder whose files share fixtures
(:mod:`tests.scheduling`), run in one pytest, in a fork of a warm process.

A process that has one keeps it, and what runs backward on it can no more be forked, so pytest's own process has none.
The file is run by pytest there as it would be here; what it reports is told on.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from _pytest.reports import TestReport

from tests.scheduling import scope_of
from tests.warm import ROOT, Started, Warm, shell, with_simulated_gpu

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
    "tests/sharding/test_resume.py",
    "tests/sharding/test_ring_races.py",
    "tests/sharding/test_ring_times.py",
    "tests/sharding/test_rings.py",
    "tests/sharding/test_strategies.py",
)
"""Single files of other folders."""

_INSIDE = "STREAMRACE_HOUSED"
_MARK = "\x1e"  # ASCII's record separator: behind it comes what is meant for the process outside


class Tests:
    """The tests of one file or folder, in the order in which they come."""

    def __init__(self, config: pytest.Config, names: list[str]) -> None:
        given = {name: config.getoption(f"--{name}", None) for name in _PASSED}
        told = [f"--{name}={value}" for name, value in given.items() if value is not None]
        environment = {**os.environ, _INSIDE: "1"}
        self._config = config
        self._started: Started = house().start(
            "-m", "pytest", "-n0", "-p", "tests.housed", *told, *names, environment=environment, session=True
        )
        self._said: list[str] = []
        self._problem = ""  # why it runs nothing any more
        atexit.register(self._end)

    def reports(self, name: str) -> Iterator[TestReport]:
        """Those of the test of this name, which comes next."""
        for line in () if self._problem else self._started.stdout:
            if not line.startswith(_MARK):
                self._said.append(line)
                continue
            told = json.loads(line[1:])
            if told.get("finished") == name:
                return
            if "finished" not in told:
                report = self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
                if isinstance(report.longrepr, list):  # a skip's: pytest -rs asks for a tuple
                    report.longrepr = tuple(report.longrepr)
                if report.nodeid == name:
                    yield report
        if not self._problem:
            _, errors = self._started.communicate()
            said = "".join(self._said[-50:])
            self._problem = f"its process ended ({self._started.returncode}):\n{said}\n{errors[-4000:]}"
        yield TestReport(name, (name.partition("::")[0], 0, name), {}, "failed", self._problem, "call")

    def _end(self) -> None:
        if self._started.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)


_PASSED = ("hypothesis-profile", "hypothesis-seed")
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
        names = [one.nodeid for one in item.session.items if scope_of(one.nodeid) == scope]
        _open[scope] = Tests(item.config, names)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _open[scope].reports(item.nodeid):
        item.ihook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)  # what earlier tests here have left: folders
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


@functools.cache
def house() -> Warm:
    """The warm process: what is started there finds all that a rank of a scenario would import."""
    warm = Warm(["pytest", "tests.preloaded"], environment=shell(), of=with_simulated_gpu())
    atexit.register(warm.close)
    return warm


# -- in the process that runs them, where this is a plugin -------------------------------------------------

_outside = os.dup(1) if _INSIDE in os.environ else -1  # before pytest captures what is written


def _tell(data: Any) -> None:
    if _outside >= 0:
        os.write(_outside, f"\n{_MARK}{json.dumps(data)}\n".encode())


def pytest_runtest_logreport(report: TestReport) -> None:
    _tell(_told(report))


def pytest_runtest_logfinish(nodeid: str) -> None:
    _tell({"finished": nodeid})


def _told(report: TestReport) -> Any:
    assert _configured
    return _configured[0].hook.pytest_report_to_serializable(config=_configured[0], report=report)


_configured: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    if _INSIDE in os.environ:
        _configured[:] = [config]
