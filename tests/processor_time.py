"""Processor time of each test file, with all processes that its tests start: ``pytest --processor-time``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_used: Counter[str] = Counter()
_last = 0.0


def spent() -> float:
    """Return the processor seconds of this process, its descendants and all whose end they awaited."""
    seconds, processes = 0.0, [os.getpid()]
    for pid in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            tasks = [*Path(f"/proc/{pid}/task").iterdir()]
            processes += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it has ended meanwhile, and its parent has its time
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _book(name: str) -> None:
    global _last
    now = spent()
    _used[name] += max(now - _last, 0.0)
    _last = max(now, _last)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _book("(imports and collection)")
    result = yield
    _book(item.nodeid if item.config.getoption("--processor-time") == "tests" else item.location[0])
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["processor_time"] = dict(_used)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Item) -> None:
    _used.update(getattr(node, "workeroutput", {}).get("processor_time", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"processor time: {sum(_used.values()):.0f} s")
    for name, seconds in _used.most_common():
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")
