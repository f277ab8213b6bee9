"""Runs a second pytest in a separate process with a simulated GPU, for the tests that need one.

A process has the GPU from before it imports torch until its end; the session's own process should not have it unasked,
and has often imported torch already. So the process collects the marked tests again, from the same command line, and
runs them one by one when their turn comes in the session; its reports are repeated here. It imports no other test file.
This file imports nothing of torch; :mod:`streamrace.fuzz.testing.housed` is the other side.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import pytest

from streamrace.process.service import Service

IsHoused = Callable[[pytest.Item], bool]
_PATIENCE_S = 10.0  # for the end of its session, when no more tests are expected from it
_MOST = 4000  # characters kept of its output


class Ended(Exception):
    """The process cannot run tests, or no longer can: a sentence, and its output."""


class House:
    """The second process. ``files``: the files with marked tests."""

    def __init__(self, config: pytest.Config, files: Sequence[str]) -> None:
        self._config = config
        self._printed = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - it stays open
        self._service = self.start(self._printed)
        self._problem = ""
        self._service.channel.send({"path": sys.path, "arguments": self.arguments(config), "files": [*files]})

    def start(self, printed: IO[bytes]) -> Service:
        """Start the process, which prints to this file."""
        folder = self._config.invocation_params.dir
        return Service("streamrace.fuzz.testing.housed", cwd=folder, stdout=printed, stderr=printed)

    def arguments(self, config: pytest.Config) -> list[str]:
        """Return the session's command line, with options that keep the second session from repeating side effects."""
        arguments = [str(argument) for argument in config.invocation_params.args]
        for plugin, switched_off in (("numprocesses", "-n0"), ("no_cov", "--no-cov")):  # xdist, pytest-cov
            if hasattr(config.option, plugin):
                arguments.append(switched_off)
        if config.option.basetemp:
            arguments.append(f"--basetemp={config.option.basetemp}-stream-race")
        return arguments

    def reports(self, item: pytest.Item, following: pytest.Item | None) -> Iterator[pytest.TestReport]:
        """Run the test in the process. ``following``: the next test there, as far as known. Raises :class:`Ended`."""
        if self._problem:
            raise Ended(self._problem)
        name = _name(item)
        self._service.channel.send([name, following and _name(following)])
        for message in self._service.channel:
            if "problem" in message:
                self._problem = message["problem"]
                raise Ended(self._problem)
            if "missing" in message:
                raise Ended(message["missing"])
            if message.get("finished") == name:
                return
            if "finished" not in message:
                report = self._config.hook.pytest_report_from_serializable(config=self._config, data=message)
                if report.nodeid == name:
                    yield _as_here(report, item)
        status = self._service.wait()
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace")[-_MOST:]
        self._problem = f"the process with the simulated GPU has ended before ({status})"
        raise Ended(f"the process with the simulated GPU ended in the middle ({status}); it printed:\n{printed}")

    def close(self) -> None:
        """Let the process end. It has a limited time for remaining work (fixtures of its session)."""
        self._service.close(_PATIENCE_S)
        self._printed.close()


def run(item: pytest.Item, house: House, nextitem: pytest.Item | None, is_housed: IsHoused) -> None:
    """Run the test in the second process, and report here."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    last: list[pytest.TestReport] = []
    try:
        for report in house.reports(item, _following(item, nextitem, is_housed)):
            if report.when == "teardown":
                last.append(report)
            else:
                item.ihook.pytest_runtest_logreport(report=report)
    except Ended as ended:
        failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", str(ended), "call")
        item.ihook.pytest_runtest_logreport(report=failed)
    if (broken := _take_down(item, nextitem)) is not None:
        broken.sections[:0] = [section for report in last if not report.failed for section in report.sections]
        last = [*(report for report in last if report.failed), broken]
    for report in last:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _take_down(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.TestReport | None:
    """Tear down what earlier tests left here and the next does not need, as a module's fixtures; return a failure."""

    def take_down() -> None:
        item.session._setupstate.teardown_exact(nextitem)

    call = pytest.CallInfo.from_call(take_down, "teardown", reraise=(KeyboardInterrupt, pytest.exit.Exception))
    if call.excinfo is None:
        return None
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report


def _following(item: pytest.Item, nextitem: pytest.Item | None, is_housed: IsHoused) -> pytest.Item | None:
    """Return the next test that will run in the process: shared fixtures may stay until then."""
    if nextitem is None or is_housed(nextitem) or hasattr(item.config, "workerinput"):  # xdist distributes the tests
        return nextitem if nextitem is not None and is_housed(nextitem) else None
    items = item.session.items
    return next((following for following in items[items.index(item) + 1 :] if is_housed(following)), None)


def _as_here(report: pytest.TestReport, item: pytest.Item) -> pytest.TestReport:
    """Adapt a report to this session: JSON turned tuples into lists, and pytest's own plugins need tuples."""
    report.nodeid = item.nodeid
    report.location = item.location
    if isinstance(report.longrepr, list):  # a skip's
        report.longrepr = tuple(report.longrepr)
    report.sections = [(name, text) for name, text in report.sections]
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def _name(item: pytest.Item) -> str:
    """Return the test's name in the process: xdist's workers add a group's name (--dist loadgroup)."""
    marks = item.iter_markers("xdist_group") if hasattr(item.config, "workerinput") else ()
    groups = [str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks]
    return next((item.nodeid.removesuffix(f"@{group}") for group in groups if group), item.nodeid)
