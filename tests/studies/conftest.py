"""Dry runs import DeepSpeed once."""

from __future__ import annotations

import pytest

from scenarios import rehearsal


@pytest.fixture(scope="session", autouse=True)
def _imports() -> None:
    rehearsal.preload()
