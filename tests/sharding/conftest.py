"""What every forked rank would import again is imported once."""

from __future__ import annotations

import pytest

from tests.sharding.interrupted import import_all


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    import_all()
