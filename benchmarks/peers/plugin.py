"""A pytest plugin of each rank: writes down the results of the tests, and keeps the ranks at the same test.

Each rank runs all tests of a suite, where the peer's own runner would start processes for each test, which would have
no trace. :mod:`benchmarks.peers.torch_tests` and :mod:`benchmarks.peers.deepspeed_tests` put the rank in their place.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ["PEERS_FOLDER"])
"""Of this start, shared by its ranks: ``rank0.jsonl``, ..., rendezvous files, and temporary folders."""
DONE = frozenset(Path(os.environ["PEERS_DONE"]).read_text(encoding="utf-8").splitlines())
"""Names of tests that ran in an earlier start."""
_REPORTS: pytest.StashKey[list[pytest.TestReport]] = pytest.StashKey()
_number = 0


def pytest_configure() -> None:
    """Give all ranks the same temporary folders."""
    folders = iter(range(1_000_000))

    def shared(self: object, basename: str, numbered: bool = True) -> Path:
        made = FOLDER / "folders" / f"{next(folders)}-{basename}"
        made.mkdir(parents=True, exist_ok=True)
        return made

    pytest.TempPathFactory.mktemp = shared  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what has run."""
    items[:] = [item for item in items if item.nodeid not in DONE]


def number() -> int:
    """Return the number of the running test, the same in all ranks."""
    return _number


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write down a file that cannot be imported."""
    if report.failed and report.nodeid not in DONE:
        _write({"test": report.nodeid, "said": "failed", "why": report.longreprtext.strip().splitlines()[-1]})


def store() -> str:
    """Return the rendezvous file of the running test, which no other test uses."""
    return str(FOLDER / f"store-{_number}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Write down the result of a test, and wait until the other ranks have theirs."""
    global _number
    _number += 1
    _write({"test": item.nodeid})
    item.stash[_REPORTS] = []
    began = time.monotonic()
    handled = yield
    reports = item.stash[_REPORTS]
    failed = next((one for one in reports if one.failed), None)
    skipped = next((one for one in reports if one.skipped and not hasattr(one, "wasxfail")), None)
    said = "failed" if failed else "skipped" if skipped else "passed"
    why = _why(failed) if failed else _skip(skipped) if skipped else ""
    _write({"test": item.nodeid, "said": said, "why": why, "seconds": round(time.monotonic() - began, 2)})
    if failed:
        with (FOLDER / f"failures-{RANK}.txt").open("a", encoding="utf-8") as file:
            file.write(f"=== {item.nodeid}\n{failed.longreprtext}\n")
    if RANKS > 1:
        if failed:  # what another rank waits for will not come
            os._exit(3)
        from streamrace.device import collectives

        collectives.drain()  # this rank waits outside torch next, and the others may need that its virtual time goes on
        while min(_ended(rank) for rank in range(RANKS)) < _number:
            time.sleep(0.01)
        if any('"failed"' in _results(rank) for rank in range(RANKS)):
            os._exit(3)
    return handled


def pytest_sessionfinish(exitstatus: int) -> None:
    """Say that all tests have run, unless pytest itself was stopped."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        _write({"end": True})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the reports of a test."""
    report = yield
    item.stash[_REPORTS].append(report)
    return report


def _write(line: dict[str, object]) -> None:
    with (FOLDER / f"rank{RANK}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _ended(rank: int) -> int:
    """Return how many tests have ended in a rank."""
    return _results(rank).count('"seconds"')


def _results(rank: int) -> str:
    try:
        return (FOLDER / f"rank{rank}.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:  # before its first test
        return ""


def _why(report: pytest.TestReport) -> str:
    """Return the last error: an outer one of a rank or a thread only repeats it. With the numbers, if two differ."""
    told = re.findall(r"^E? *((?:\w+\.)*\w*(?:Error|Exception): .*)", report.longreprtext, re.MULTILINE)
    numbers = re.findall(r"^E? *(Expected .* but got .*)", report.longreprtext, re.MULTILINE)
    return " ".join([told[-1] if told else report.longreprtext[-300:], *numbers[-1:]])[:1000]


def _skip(report: pytest.TestReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
