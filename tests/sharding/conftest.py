"""For all tests of the sharded engine: what ranks import, and how long they may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sharding.interrupted import import_all

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Eight ranks on two cores: what takes a minute takes several where other tests run beside."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    """What every forked rank would import again is imported once."""
    import_all()
