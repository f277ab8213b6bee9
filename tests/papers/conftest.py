"""For the tests of the papers' studies: dry runs import DeepSpeed once, and live ones may take long."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.scenarios import rehearsal

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Eight ranks on two cores: what takes a minute takes several where other tests run beside."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    rehearsal.preload()


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are asked for on a terminal of 80 columns, however wide the one is that the tests run in."""
    monkeypatch.setenv("COLUMNS", "80")
