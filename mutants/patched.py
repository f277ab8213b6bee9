"""Runs mutmut as :mod:`mutants.every` needs it; the program's arguments are mutmut's.

The tests of a change run in the order of their duration, as the first failure ends the run. And no wall clock ends the
tests, only a limit of processor time: mutmut's clock ends tests by accident where the machine is busy, and, long after
a test has ended, kills by process id, which may be another process's by then.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest


class CheapestFirst:
    def __init__(self, took: dict[str, float]) -> None:
        self._took = took

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._took.get(item.nodeid, 0.0))


def main() -> None:
    sys.path[0] = ""  # the current folder, not this file's
    harness, isolation, state, program = (
        import_module(f"mutmut.{name}") for name in ("runners.harness", "workers.isolation", "state", "__main__")
    )
    run = harness.PytestRunner.execute_pytest

    def cheapest_first(self: Any, arguments: list[str], plugins: list[object] | None = None) -> int:
        ordered = CheapestFirst(state.state().duration_by_test)
        return int(run(self, arguments, plugins=[*(plugins or []), ordered]))

    harness.PytestRunner.execute_pytest = cheapest_first
    vars(isolation)["register_timeout"] = lambda *_: None
    program.cli()


if __name__ == "__main__":
    main()
